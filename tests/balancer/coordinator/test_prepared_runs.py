"""Runs that are prepared while ranks take the last batches: the same, used once, or made anew."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from counterpoise.balancer.coordinator import run_control
from counterpoise.balancer.planning.planner import Planner
from counterpoise.balancer.planning.problem.config import Planned, Window
from counterpoise.balancer.planning.problem.options import Mode
from counterpoise.balancer.protocol.messages import (
    EpochPosition,
    RequestBatch,
    RunFailed,
    StartRun,
    WorkerHello,
)
from tests.balancer.coordinator.test_known_costs import COUNT, JOB, PLAN, START, Epochs


def prepared(epochs: Epochs) -> Any:
    """Return the run that is prepared, None if there is none."""
    held = epochs.coordinator.runs.maker._prepared
    return None if held is None else held.run


def current(epochs: Epochs) -> Any:
    return epochs.coordinator.state.run


@pytest.mark.parametrize("told", [(), (3, 4)])
@pytest.mark.parametrize("mode", ["exact", "window", "epoch"])
def test_a_prepared_run_is_the_one_that_would_be_made(mode: Mode, told: tuple[int, ...]) -> None:
    job = replace(JOB, plan=replace(PLAN, mode=mode))
    epochs, others = Epochs(job, told=told), Epochs(job, told=told, prepares=False)
    for _ in range(4):
        ready = prepared(epochs)
        measured = epochs.epoch()
        assert ready is None or current(epochs) is ready
        assert measured == others.epoch()
    assert ready is not None
    assert epochs.given == others.given
    # Leases of two runs never have the same number.
    assert current(epochs).leases.last == current(others).leases.last


def test_it_is_prepared_once_when_workers_have_done_everything() -> None:
    epochs = Epochs(replace(JOB, buffer_bytes=1024), count=4 * COUNT, prepares=False)
    maker = epochs.coordinator.runs.maker
    epochs.run, step = 0, 0
    epochs.tell(b"r", StartRun(0, 0, START))
    while not maker.is_due():
        epochs.tell(b"r", RequestBatch(0, 0, step, 0))
        step += 1
    assert sorted(epochs.measured) == [*range(4 * COUNT)]
    assert not epochs.is_over
    assert epochs.coordinator.next_deadline() == 0.0
    assert epochs.coordinator.tick(0.0) == []
    assert (maker.is_due(), prepared(epochs).begin.epoch) == (False, 1)


def test_while_a_rank_waits_for_its_first_batch_nothing_is_prepared() -> None:
    epochs = Epochs(prepares=False)
    epochs.tell(b"r", StartRun(0, 0, START))
    assert sorted(epochs.measured) == [*range(COUNT)]
    assert not epochs.coordinator.runs.maker.is_due()


def new_worker(epochs: Epochs) -> None:
    """Let a worker join that says what samples cost."""
    epochs.told = (3, 4)
    epochs.tell(b"v", WorkerHello("v", 0, "host", 1))


def other_data(epochs: Epochs) -> None:
    epochs.coordinator.state.count = epochs.count = COUNT + 8


def forget(epochs: Epochs) -> None:
    epochs.coordinator.state.costs.forget()


OTHERWISE: dict[str, tuple[Callable[[Epochs], None] | None, dict[str, Any]]] = {
    "another epoch": (None, {"epoch": 7}),
    "another run": (None, {"run": 5}),
    "a position": (None, {"at": EpochPosition(8, 1, 1, 0)}),
    "holes": (None, {"holes": (3,)}),
    "costs of a worker": (new_worker, {}),
    "costs are forgotten": (forget, {}),
    "other data": (other_data, {}),
}


def start(epochs: Epochs, **changed: Any) -> None:
    epochs.run += 1
    values: dict[str, Any] = {"run": epochs.run, "epoch": epochs.run, "at": START} | changed
    epochs.tell(b"r", StartRun(**values))


@pytest.mark.parametrize(("happens", "changed"), OTHERWISE.values(), ids=[*OTHERWISE])
def test_a_run_that_is_otherwise_is_made_anew(
    happens: Callable[[Epochs], None] | None, changed: dict[str, Any]
) -> None:
    epochs, others = Epochs(), Epochs(prepares=False)
    epochs.epoch()
    others.epoch()
    ready = prepared(epochs)
    assert ready is not None
    for each in (epochs, others):
        if happens is not None:
            happens(each)
        start(each, **changed)
    assert current(epochs) is not ready
    assert prepared(epochs) is None
    assert epochs.measured == others.measured
    assert list(current(epochs).feed.order) == list(current(others).feed.order)


def test_a_large_data_set_is_not_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_control, "MOST_SAMPLES", COUNT - 1)
    epochs = Epochs()
    epochs.epoch()
    assert prepared(epochs) is None
    epochs.epoch()


def test_after_failed_samples_nothing_is_prepared() -> None:
    epochs = Epochs()
    epochs.failing = frozenset({3})
    epochs.epoch()
    assert prepared(epochs) is None


class Refusing(Planner):
    """A planner that finds no plan for the second epoch."""

    def plan(self, window: Window) -> Planned:
        if window.epoch == 1:
            raise ValueError("not this one")
        return super().plan(window)


def test_what_cannot_be_planned_is_said_when_it_is_asked_for() -> None:
    epochs = Epochs(plan_with=Refusing)
    epochs.epoch()
    assert (prepared(epochs), epochs.coordinator.state.failure) == (None, None)
    start(epochs)
    assert epochs.coordinator.state.failure == RunFailed("plan", "not this one")
