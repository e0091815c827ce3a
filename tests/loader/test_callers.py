"""Who may call next(): one thread at a time, and never a forked child of who began."""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from counterpoise.loader import Balance, DataLoader, LoaderError, RemoteDataset
from tests.loader.uses.forks import in_child

COUNT = 40


class Endless(IterableDataset[int]):
    """A stream of unknown length."""

    def __iter__(self) -> Iterator[int]:
        return itertools.count()


class Gate:
    """A collate function, or a data set, that holds whoever is inside until it is opened."""

    def __init__(self) -> None:
        self.inside, self.opened = threading.Event(), threading.Event()

    def __call__(self, samples: list[int]) -> list[int]:
        if samples and threading.current_thread() is not threading.main_thread():
            self.inside.set()
            self.opened.wait(60)
        return samples


def balanced(workers: int, collate: Any = list, **more: Any) -> DataLoader:
    return DataLoader(
        range(COUNT), 2, shuffle=True, num_workers=workers, balance="fixed", ranks=(0, 1),
        cost={"tokens": [1] * COUNT}, collate_fn=collate, **more,
    )  # fmt: skip


def plain(workers: int) -> DataLoader:
    return DataLoader(range(COUNT), 2, shuffle=True, num_workers=workers, collate_fn=list)


def refused_meanwhile(iterator: Iterator[Any], gate: Gate) -> str:
    """Return the error of a call of next() while another thread is inside one."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(next(iterator)))
    thread.start()
    assert gate.inside.wait(60)
    try:
        with pytest.raises(RuntimeError) as refused:
            next(iterator)
    finally:
        gate.opened.set()
        thread.join()
    found += iterator
    assert len(found) == COUNT // 2
    return str(refused.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_second_thread_inside_a_balanced_loaders_next_is_refused_and_nothing_is_lost(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    loader = balanced(workers)
    iterator = iter(loader)
    source: Any = loader._balanced.open()
    take = source.next
    monkeypatch.setattr(source, "next", lambda limit: (gate([0]), take(limit))[1])
    assert "two threads called next()" in refused_meanwhile(iterator, gate)
    loader.close()


def test_so_it_is_for_whole_steps() -> None:
    gate = Gate()
    assert "two threads called next()" in refused_meanwhile(balanced(0, gate).steps(), gate)


def test_and_for_a_plain_loader_with_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    iterator: Any = iter(plain(1))
    hand_out = iterator._hand_out
    monkeypatch.setattr(iterator, "_hand_out", lambda data: (gate([0]), hand_out(data))[1])
    assert "two threads called next()" in refused_meanwhile(iterator, gate)


@pytest.mark.parametrize("make", [lambda: balanced(1), lambda: plain(1), lambda: balanced(0)])
def test_threads_that_take_turns_share_an_iterator(make: Callable[[], DataLoader]) -> None:
    loader, found = make(), list[list[int]]()
    iterator = iter(loader)

    def take() -> None:
        found.extend(itertools.islice(iterator, 1))

    for _ in range(COUNT // 2):
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
    assert sorted(itertools.chain(*found)) == list(range(COUNT))
    loader.close()


def test_an_error_in_one_thread_leaves_the_turn_to_another() -> None:
    failing = [True]

    def collate(samples: list[int]) -> list[int]:
        if samples and failing and failing.pop():
            raise MemoryError("once")
        return samples

    iterator, raised = iter(balanced(0, collate)), list[BaseException]()

    def take() -> None:
        try:
            next(iterator)
        except MemoryError as error:
            raised.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert raised
    assert len(list(iterator)) == COUNT // 2


# --- forked children


def test_a_child_on_its_parents_iterator_is_refused_at_once_and_iterates_anew() -> None:
    for persistent in (False, True):
        loader = DataLoader(
            range(COUNT), 2, num_workers=1, persistent_workers=persistent, collate_fn=list
        )
        iterator = iter(loader)
        first = next(iterator)
        refused = in_child(lambda it=iterator: next(it))  # type: ignore[misc]
        anew = in_child(lambda loader=loader: list(loader))  # type: ignore[misc]
        with pytest.raises(RuntimeError, match="workers belong to process"):
            refused()
        assert anew() == [first, *iterator]  # the parent's workers are alive
        loader.close()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_a_child_on_a_balanced_iterator_is_refused_at_once_and_iterates_anew(
    ended: bool, persistent: bool
) -> None:
    loader = balanced(1, persistent_workers=persistent)
    iterator = iter(loader)
    had = list(itertools.islice(iterator, None if ended else 3))
    refused = in_child(lambda: next(iterator, None))
    anew = [in_child(lambda: list(loader)), in_child(lambda: list(loader.steps()))]
    if ended:
        assert refused() is None
    else:
        with pytest.raises(LoaderError, match="workers belong to process"):
            refused()
    batches, steps = [child() for child in anew]
    had += iterator  # the parent's workers are alive
    for each in (had, batches, [step.microbatches[0] for step in steps]):
        assert sorted(itertools.chain(*each)) == list(range(COUNT))
    loader.close()


def test_without_processes_a_child_has_a_copy() -> None:
    for make in (plain, balanced):
        iterator = iter(make(0))
        next(iterator)
        child = in_child(lambda it=iterator: list(it))  # type: ignore[misc]
        assert child() == list(iterator)


# --- as a truth value


def test_a_loader_is_true_and_nothing_is_started_to_say_so() -> None:
    auto = DataLoader(
        range(COUNT), shuffle=True, num_workers=1, ranks=(0, 1),
        balance=Balance(samples_per_step=8, budgets={"samples": 3}, accumulate="auto"),
    )  # fmt: skip
    elsewhere = DataLoader(
        RemoteDataset("*.tar"), 2, shuffle=True, balance="fixed", ranks=(0, 1),
        balancer="tcp://127.0.0.1:1",
    )  # fmt: skip
    for loader in (auto, elsewhere, balanced(1), plain(1), DataLoader(Endless())):
        assert loader
    assert auto._late is not None
    assert auto._late.made is not None
    assert auto._late.made._connection is None
    assert not DataLoader(range(1), 2, drop_last=True)
