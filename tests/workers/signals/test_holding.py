"""Held signals: kept while a marked function runs, and raised where the trainer would wait."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from counterpoise.workers.signals import holding
from counterpoise.workers.signals.holding import hold, raise_held, uninterrupted
from tests.loader.alarms import Interrupted

SIGNAL = signal.SIGUSR1


def interrupt(*_: object) -> None:
    raise Interrupted


@pytest.fixture(autouse=True)
def _handled() -> Iterator[None]:
    before = signal.signal(SIGNAL, interrupt)
    yield
    signal.signal(SIGNAL, before)
    holding._handlers.pop(SIGNAL, None)
    holding._held.discard(SIGNAL)


def be_sent_a_signal() -> int:
    signal.raise_signal(SIGNAL)
    return 7


@uninterrupted
def be_marked() -> int:
    return be_sent_a_signal()


class Deleted:
    """What is told of a signal within its finalizer."""

    def __init__(self, found: list[int]) -> None:
        self.found = found

    @uninterrupted
    def __del__(self) -> None:
        self.found.append(be_sent_a_signal())


def test_a_marked_function_and_what_it_calls_are_finished_first() -> None:
    hold(SIGNAL, __name__)
    assert be_marked() == 7
    with pytest.raises(Interrupted):
        raise_held()


def test_what_was_raised_is_not_raised_again() -> None:
    hold(SIGNAL, __name__)
    be_marked()
    with pytest.raises(Interrupted):
        raise_held()
    raise_held()


def test_elsewhere_it_is_raised_at_once() -> None:
    hold(SIGNAL, __name__)
    with pytest.raises(Interrupted):
        be_sent_a_signal()
    raise_held()


def test_a_finalizer_is_finished_first() -> None:
    hold(SIGNAL, __name__)
    found: list[int] = []
    del_me = Deleted(found)
    del del_me
    assert found == [7]
    with pytest.raises(Interrupted):
        raise_held()


def test_it_is_raised_in_the_main_thread_only() -> None:
    hold(SIGNAL, __name__)
    be_marked()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(raise_held).result()
    with pytest.raises(Interrupted):
        raise_held()


@pytest.mark.parametrize("handler", [interrupt, signal.SIG_IGN, signal.SIG_DFL])
def test_handlers_of_others_are_left_alone(handler: Any) -> None:
    signal.signal(SIGNAL, handler)
    hold(SIGNAL, "another.module")
    assert signal.getsignal(SIGNAL) is handler


def test_it_is_held_once_however_often_it_is_asked_for() -> None:
    hold(SIGNAL, __name__)
    held = signal.getsignal(SIGNAL)
    hold(SIGNAL, __name__)
    assert signal.getsignal(SIGNAL) is held
    assert holding._handlers[SIGNAL] is interrupt


def test_outside_of_the_main_thread_nothing_is_changed() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold, SIGNAL, __name__).result()
    assert signal.getsignal(SIGNAL) is interrupt


def test_a_signal_of_the_system_is_held_too() -> None:
    hold(SIGNAL, __name__)

    @uninterrupted
    def be_killed() -> int:
        os.kill(os.getpid(), SIGNAL)
        return 7

    assert be_killed() == 7
    with pytest.raises(Interrupted):
        raise_held()
