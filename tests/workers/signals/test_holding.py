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
from tests.workers.signals.raising import interrupt, raising_handler

SIGNAL = signal.SIGUSR1


@pytest.fixture(autouse=True)
def module() -> Iterator[str]:
    """Return the module of the handler."""
    with raising_handler(SIGNAL) as name:
        yield name


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


def test_a_marked_function_and_what_it_calls_are_finished_first(module: str) -> None:
    hold(SIGNAL, module)
    assert be_marked() == 7
    with pytest.raises(Interrupted):
        raise_held()


def test_what_was_raised_is_not_raised_again(module: str) -> None:
    hold(SIGNAL, module)
    be_marked()
    with pytest.raises(Interrupted):
        raise_held()
    raise_held()


def test_elsewhere_it_is_raised_at_once(module: str) -> None:
    hold(SIGNAL, module)
    with pytest.raises(Interrupted):
        be_sent_a_signal()
    raise_held()


def test_a_finalizer_is_finished_first(module: str) -> None:
    hold(SIGNAL, module)
    found: list[int] = []
    del_me = Deleted(found)
    del del_me
    assert found == [7]
    with pytest.raises(Interrupted):
        raise_held()


def test_it_is_raised_in_the_main_thread_only(module: str) -> None:
    hold(SIGNAL, module)
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


def test_it_is_held_once_however_often_it_is_asked_for(module: str) -> None:
    hold(SIGNAL, module)
    held = signal.getsignal(SIGNAL)
    hold(SIGNAL, module)
    assert signal.getsignal(SIGNAL) is held
    assert holding._handlers[SIGNAL] is interrupt


def test_outside_of_the_main_thread_nothing_is_changed(module: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold, SIGNAL, module).result()
    assert signal.getsignal(SIGNAL) is interrupt


def test_a_child_has_none_of_its_parents(module: str) -> None:
    hold(SIGNAL, module)
    be_marked()
    pid = os.fork()
    if pid == 0:
        os._exit(len(holding._held))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with pytest.raises(Interrupted):
        raise_held()
