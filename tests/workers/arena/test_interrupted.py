"""Queues while a handler like torch's raises at any moment: no descriptor and no memory is lost."""

import gc
import os
import random
import signal
import time
from collections.abc import Iterator

import pytest
import torch

from counterpoise.workers.arena.layout import Packet
from counterpoise.workers.arena.queue import ArenaQueue, send_kept
from counterpoise.workers.signals import holding
from counterpoise.workers.signals.holding import hold, raise_held
from tests.faults.leftovers import descriptors, memory_of
from tests.loader.alarms import Interrupted
from tests.workers.signals.raising import raising_handler

ROUNDS = 400


@pytest.fixture(autouse=True)
def _held() -> Iterator[None]:
    with raising_handler(signal.SIGALRM) as module:
        hold(signal.SIGALRM, module)
        yield


def carry(line: ArenaQueue) -> None:
    for _ in range(3):
        line.put(torch.zeros(50_000))
        line.get(timeout=5)


def carry_time_s() -> float:
    """Return what `carry` takes; what is imported and made by its first use is there then."""
    took = []
    for _ in range(3):
        line, began = ArenaQueue(), time.perf_counter()
        carry(line)
        took.append(time.perf_counter() - began)
        line.close()
    return min(took)


def is_interrupted(after_s: float) -> bool:
    """Use a queue and close it; return whether the handler raised meanwhile."""
    line = ArenaQueue()
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        carry(line)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return True
    finally:
        line.close()
        holding._held.clear()
    return False


def left_over() -> tuple[list[str], list[int]]:
    """Return this process' descriptors, and its memory files."""
    gc.collect()
    return sorted(descriptors(os.getpid())), sorted(memory_of("self"))


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost(seed: int) -> None:
    draw, longest_s = random.Random(seed), carry_time_s()
    before = left_over()
    raised = sum(is_interrupted(draw.uniform(1e-6, longest_s)) for _ in range(ROUNDS))
    assert left_over() == before
    assert raised > ROUNDS // 4


def test_what_was_kept_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    line, sending = ArenaQueue(), ArenaQueue._try_send

    def send_and_raise(line: ArenaQueue, packet: Packet) -> bool:
        sent = sending(line, packet)
        signal.raise_signal(signal.SIGALRM)
        return sent

    with monkeypatch.context() as patched:
        patched.setattr(ArenaQueue, "_try_send", lambda *_: False)
        line.put(7)
    monkeypatch.setattr(ArenaQueue, "_try_send", send_and_raise)
    send_kept()
    assert not line._unsent
    with pytest.raises(Interrupted):
        raise_held()
    assert line.get(timeout=5) == 7
    line.close()
