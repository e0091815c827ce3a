"""The garbage collector may free an iterator in any thread, also in one that it would wait for."""

import gc
import multiprocessing
import sys
import threading
import types
import weakref
from typing import Any

import pytest

import counterpoise as cp
from counterpoise.balancer.run.planning import PlanningThread
from counterpoise.loader.plain import own_workers

SAMPLES = 24
BALANCED: Any = {"balance": "fixed", "cost": {"tokens": [1] * SAMPLES}}


def named(name: str) -> threading.Thread:
    return next(each for each in threading.enumerate() if each.name == name)


@pytest.fixture
def swallowed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What finalizers have raised."""
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: raised.append(repr(each.exc_value)))
    return raised


def test_an_iterator_that_its_planning_thread_frees_ends_thread_and_workers(
    monkeypatch: pytest.MonkeyPatch, swallowed: list[Any]
) -> None:
    kept: list[Any] = []
    turn, freed_by = PlanningThread.turn, list[threading.Thread]()

    def turn_and_free(self: PlanningThread) -> bool:
        if kept:
            freed_by.append(threading.current_thread())
            kept.clear()
        return turn(self)

    monkeypatch.setattr(PlanningThread, "turn", turn_and_free)
    loader: Any = cp.DataLoader(
        list(range(SAMPLES)), 4, shuffle=True, collate_fn=list, num_workers=1, **BALANCED
    )
    others = {*multiprocessing.active_children()}
    begun = iter(loader)
    next(begun)
    thread = named("counterpoise planning")
    assert {*multiprocessing.active_children()} - others
    kept.append(begun)
    del begun
    thread.join(60.0)
    assert (freed_by, thread.is_alive(), swallowed) == ([thread], False, [])
    assert not {*multiprocessing.active_children()} - others
    assert len(list(loader)) == SAMPLES // 4


@pytest.mark.parametrize("how", [{}, {"shuffle": True, **BALANCED}])
def test_an_iterator_that_its_pinning_thread_frees_ends_its_workers(
    how: dict[str, Any], swallowed: list[Any]
) -> None:
    others = {*multiprocessing.active_children()}
    before = {*own_workers._all}
    loader: Any = cp.DataLoader(list(range(SAMPLES)), 4, collate_fn=list, num_workers=1, **how)
    begun = iter(loader)
    next(begun)
    (torchs,) = {*own_workers._all} - before
    # torch has such a thread only beside an accelerator
    torchs._pin_memory_thread = threading.current_thread()
    torchs._pin_memory_thread_done_event = threading.Event()
    is_told = torchs._pin_memory_thread_done_event
    del begun, torchs
    gc.collect()
    assert (is_told.is_set(), swallowed) == (True, [])
    assert not {*multiprocessing.active_children()} - others


def test_an_iterator_is_freed_while_its_function_runs_on_beside_lightning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lightning: Any = types.ModuleType("pytorch_lightning")
    lightning.Trainer = type("Trainer", (), {"__module__": "pytorch_lightning.trainer"})
    monkeypatch.setitem(sys.modules, "pytorch_lightning", lightning)
    loader: Any = cp.DataLoader(list(range(SAMPLES)), 4, shuffle=True, collate_fn=list, **BALANCED)
    begun = iter(loader)
    next(begun)
    kept = weakref.ref(begun)
    del begun
    assert kept() is None
