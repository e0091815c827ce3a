"""Queues while a handler like torch's raises at any moment: no descriptor and no memory is lost."""

import gc
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from counterpoise.workers.arena.queue import ArenaQueue
from counterpoise.workers.signals import holding
from counterpoise.workers.signals.holding import hold
from tests.faults.leftovers import memory_of
from tests.loader.alarms import Interrupted

# A slot is made, sent, mapped and freed within this time.
LONGEST_S = 0.0006
ROUNDS = 400


def interrupt(*_: object) -> None:
    raise Interrupted


@pytest.fixture(autouse=True)
def _held() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, interrupt)
    hold(signal.SIGALRM, __name__)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    holding._handlers.pop(signal.SIGALRM, None)
    holding._held.clear()


def interrupted(use: Callable[[ArenaQueue], None], after_s: float) -> bool:
    """Use a queue and close it; return whether the handler raised meanwhile."""
    line = ArenaQueue()
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        use(line)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return True
    finally:
        line.close()
    return False


def carry(line: ArenaQueue) -> None:
    for _ in range(3):
        line.put(torch.zeros(50_000))
        line.get(timeout=5)


def left_over() -> tuple[int, list[int]]:
    """Return the number of this process' descriptors, and its memory files."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir())), memory_of("self")


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost(seed: int) -> None:
    draw, raised = random.Random(seed), 0
    carry(ArenaQueue())  # what the first use imports stays
    before = left_over()
    for _ in range(ROUNDS):
        raised += interrupted(carry, draw.uniform(1e-6, LONGEST_S))
        holding._held.clear()
    assert left_over() == before
    assert raised > ROUNDS // 4
