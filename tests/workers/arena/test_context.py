"""The event of an arena's context: set once, seen by all, and kept by nobody who is killed."""

import multiprocessing
import os
import signal
import threading
import time

import pytest

from counterpoise.workers.arena.queue import ArenaContext, LockFreeEvent


def look_for_ever(event: LockFreeEvent) -> None:
    while True:
        event.is_set()


def leave_when_set(event: LockFreeEvent) -> None:
    while not event.is_set():
        time.sleep(0.001)


def test_it_is_set_for_good() -> None:
    event = ArenaContext().Event()
    assert not event.is_set()
    event.set()
    event.set()
    assert event.is_set()
    assert event.is_set()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_see_it(method: str) -> None:
    context = multiprocessing.get_context(method)
    event = ArenaContext(context).Event()
    process = context.Process(target=leave_when_set, args=(event,))  # type: ignore[attr-defined]
    process.start()
    assert process.exitcode is None
    event.set()
    process.join(120)
    assert process.exitcode == 0


def test_a_process_that_is_killed_while_it_looks_holds_nobody_up() -> None:
    # With multiprocessing's own event the half of these would wait for ever.
    for _ in range(20):
        event = ArenaContext().Event()
        pid = os.fork()
        if pid == 0:
            look_for_ever(event)
        time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        setting = threading.Thread(target=event.set, daemon=True)
        setting.start()
        setting.join(5)
        assert not setting.is_alive()
        assert event.is_set()
