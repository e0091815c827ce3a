"""The trainer's handle of its balancer: reports are what they say, and a reason is never lost."""

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from counterpoise.balancer.server.embedded import find_directory
from counterpoise.loader.remote import balancer_process
from counterpoise.loader.remote.balancer_process import EmbeddedBalancer
from counterpoise.workers.processes.clean_interpreter import clean_command

LIMIT_S = 60.0


@pytest.fixture
def balancer() -> Iterator[EmbeddedBalancer]:
    started = EmbeddedBalancer()
    yield started
    started.close()


def heard(balancer: EmbeddedBalancer) -> str:
    """Return what `failure` says once there is a report, as who polls for failures learns it."""
    assert select.select([balancer], [], [], LIMIT_S)[0], "no report"
    return balancer.failure()


def test_that_it_serves_is_no_failure_and_is_not_waited_for_again(
    balancer: EmbeddedBalancer,
) -> None:
    assert heard(balancer) == ""
    assert balancer.failure() == ""
    balancer.wait_ready(timeout_s=0.0)


def test_who_waits_until_it_serves_learns_no_failure_either(balancer: EmbeddedBalancer) -> None:
    balancer.wait_ready()
    assert balancer.failure() == ""
    assert not select.select([balancer], [], [], 0)[0]


@pytest.mark.parametrize("is_ready", [True, False])
def test_one_that_is_killed_is_named_with_the_signal(
    balancer: EmbeddedBalancer, is_ready: bool
) -> None:
    if is_ready:
        balancer.wait_ready()
    os.kill(balancer.pid, signal.SIGKILL)
    # The first report may be that it served.
    assert f"(pid {balancer.pid}) ended with SIGKILL" in (heard(balancer) or heard(balancer))


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBalancer]:
    """A balancer that cannot serve."""

    def failing(module: str, call: str) -> list[str]:
        return clean_command(module, f"m.serve = lambda *_, **__: int('no port'); {call}")

    monkeypatch.setattr(balancer_process, "clean_command", failing)
    started = EmbeddedBalancer()
    yield started
    started.close()


def test_one_that_cannot_start_says_why_to_who_polls(broken: EmbeddedBalancer) -> None:
    assert heard(broken).startswith("the balancer could not start: ValueError: invalid literal")


def test_one_that_cannot_start_says_why_to_who_waits(broken: EmbeddedBalancer) -> None:
    with pytest.raises(RuntimeError, match="could not start: ValueError: invalid"):
        broken.wait_ready()


def test_a_closed_one_has_ended(balancer: EmbeddedBalancer) -> None:
    balancer.close()
    assert balancer.failure() == "the balancer's process was ended"


def test_one_that_is_let_go_ends_and_removes_its_directory() -> None:
    started = EmbeddedBalancer()
    started.wait_ready()
    directory = find_directory(started.endpoint)
    ends = started._ends
    os.close(ends.lifeline)
    ends.lifeline = -1
    assert ends.process.wait(LIMIT_S) == 0
    assert not Path(directory).exists()
    started.close()
