"""Balanced loaders measure samples once, as long as their workers stay."""

import multiprocessing
import os
import signal
import threading
from typing import Any

import pytest

from counterpoise.loader import Balance, DataLoader
from counterpoise.loader.remote.host import HostConnection
from counterpoise.workers.sources.interface import Probe

pytestmark = pytest.mark.slow

COUNT = 40


class Counted:
    """Samples whose costs the trainer may change; all processes count how often they are asked."""

    factor = 1

    def __init__(self) -> None:
        self.asked = multiprocessing.Value("q", 0)

    def __len__(self) -> int:
        return COUNT

    def probe(self, index: int) -> Probe:
        with self.asked.get_lock():
            self.asked.value += 1
        return Probe(str(index), {"tokens": 1 + index * 7 % 13 * self.factor})

    def __getitem__(self, index: int) -> int:
        return index


def make(data: Counted, **named: Any) -> Any:
    balance = Balance("isf", budgets={"tokens": 40}, accumulate="auto", samples_per_step=8, seed=3)
    return DataLoader(data, shuffle=True, balance=balance, collate_fn=list, **named)


def epochs(loader: Any, number: int = 3) -> list[list[list[int]]]:
    return [list(loader) for _ in range(number)]


def test_workers_that_stay_are_asked_once() -> None:
    data, inline = Counted(), Counted()
    loader, other = make(data, num_workers=2, persistent_workers=True), make(inline)
    data.asked.value = inline.asked.value = 0  # loaders look at one when they are made
    assert epochs(loader) == epochs(other)
    assert (data.asked.value, inline.asked.value) == (COUNT, 3 * COUNT)
    loader.close()
    # The workers that follow may have another data set.
    epochs(loader, 2)
    assert data.asked.value == 2 * COUNT
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_new_workers_are_asked_what_the_data_set_says_now(workers: int) -> None:
    data = Counted()
    loader = make(data, num_workers=workers)
    data.asked.value = 0
    first = epochs(loader, 2)
    data.factor = 3
    changed = epochs(loader, 2)
    loader.close()
    assert data.asked.value == 4 * COUNT
    other = make(data)
    for epoch, batches in enumerate(changed, 2):
        other.set_epoch(epoch)
        assert [batches] == epochs(other, 1)
    assert [len(batches) for batches in first] != [len(batches) for batches in changed]


@pytest.mark.usefixtures("through_balancer")
def test_the_end_of_workers_reaches_a_balancer_that_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a connection that is replaced before all of it is read the rest is lost."""
    data = Counted()
    loader = make(data, num_workers=1)
    data.asked.value = 0
    finish = HostConnection.finish

    def finish_while_it_stands(self: HostConnection) -> None:
        balancer = self._processes.balancer
        assert balancer is not None
        os.kill(balancer.pid, signal.SIGSTOP)
        threading.Timer(0.2, os.kill, (balancer.pid, signal.SIGCONT)).start()
        finish(self)

    monkeypatch.setattr(HostConnection, "finish", finish_while_it_stands)
    epochs(loader)
    monkeypatch.undo()
    loader.close()
    assert data.asked.value == 3 * COUNT
