"""The doctor: what it says of good and bad machines, and of a balancer that runs."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from counterpoise.balancer.job.jobs import PlayedJobs
from counterpoise.balancer.server.loop import serve
from counterpoise.balancer.transport.keys import ServerKeys, server_keys
from counterpoise.tools.doctor import installation as look
from counterpoise.tools.doctor.command import command
from counterpoise.tools.doctor.figures import BAD, GOOD, WARN, Finding
from counterpoise.tools.doctor.job import examine_job
from counterpoise.tools.services.keygen import command as keygen
from counterpoise.workers.sources.dead_letters import append_letter
from counterpoise.workers.sources.failures import SkippedSample

GIB = 2**30


def machine(
    name: str, processors: float = 8, why: str = "", shm_bytes: int | None = 8 * GIB
) -> Finding:
    """Return the finding of that name about a machine."""
    return next(e for e in look.judge_machine(processors, why, shm_bytes) if e.name == name)


def report(*arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """(exit status, {name: (level, found)}) of a run."""
    result = CliRunner().invoke(command, [*arguments, "--json"], standalone_mode=False)
    assert result.exception is None, result.exception
    found = json.loads(result.stdout.splitlines()[-1])
    assert set(found) - {"job"} == {"findings", "wrong"}
    rows = {one["name"]: (one["level"], one["found"]) for one in found["findings"]}
    if result.return_value != 3:
        assert result.return_value == (1 if found["wrong"] else 0)
    return result.return_value, rows


def test_this_installation_is_sound() -> None:
    status, rows = report()
    assert status == 0
    assert {"python", "torch", "pyzmq", "processors", "transport", "/dev/shm"} <= set(rows)


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (machine("processors"), GOOD),
        (machine("processors", processors=1.5), WARN),
        (machine("transport"), GOOD),
        (machine("transport", why="a memory file cannot be made"), WARN),
        (machine("/dev/shm"), GOOD),
        (machine("/dev/shm", shm_bytes=64 * 2**20), WARN),
        (machine("/dev/shm", shm_bytes=None), WARN),
    ],
)
def test_what_is_bad_comes_with_advice(finding: Finding, level: str) -> None:
    assert finding.level == level
    assert bool(finding.advice) == (level != GOOD)


def test_packages_are_held_against_the_least_version() -> None:
    have = {"torch": "2.13.0+cpu", "numpy": "1.26.4"}
    wanted = ["torch>=2.13", "numpy>=2.0", "click>=8.1", 'pytest>=8 ; extra == "dev"']
    found = {one.name: one.level for one in look.judge_packages(wanted, have.get)}
    assert found == {"torch": GOOD, "numpy": BAD, "click": BAD}


@contextmanager
def running(keys: ServerKeys | None = None) -> Iterator[str]:
    """Run a balancer without workers; its address."""
    over, there, address = threading.Event(), threading.Event(), [""]

    def ready(found: str) -> None:
        address[0] = found
        there.set()

    run = threading.Thread(
        target=serve,
        args=(PlayedJobs(1, lambda _: None), "tcp://127.0.0.1:*", ready, over.is_set),
        kwargs={"keys": keys},
    )
    run.start()
    assert there.wait(20)
    try:
        yield address[0]
    finally:
        over.set()
        run.join(20)


def test_a_balancer_without_workers_is_told_apart() -> None:
    with running() as address:
        status, rows = report(address)
    assert status == 1
    assert rows["balancer"][0] in (GOOD, WARN)
    assert rows["workers"] == (BAD, "0 ready")


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Keys of a balancer, a worker and a trainer."""
    result = CliRunner().invoke(keygen, [str(tmp_path / "keys")], catch_exceptions=False)
    assert result.exit_code == 0
    return tmp_path / "keys"


def test_a_balancer_with_keys_answers_those_it_knows(folders: Path) -> None:
    with running(server_keys(folders / "balancer")) as address:
        known = examine_job(address, 20, folders / "trainer")
        assert known.findings[0].level in (GOOD, WARN), known
        assert known.status is not None
        stranger = examine_job(address, 0.5)
        assert [one.level for one in stranger.findings] == [BAD]
        assert stranger.unanswered
        with pytest.raises(ValueError, match="worker"):
            examine_job(address, 20, folders / "worker")


def test_what_cannot_be_asked_is_told_apart() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        silent = {"balancer": (BAD, f"{address}: no answer in time")}
        assert report(address, "--timeout", "0.2") == (3, silent)
        other.listen()
        found = examine_job(address, 0.2)
        assert [(one.level, "no answer" in one.found) for one in found.findings] == [(BAD, True)]
        assert found.unanswered
    assert report("ipc:///nowhere/balancer", "--timeout", "0.2")[0] == 3


def test_warnings_count_where_that_is_asked_for(tmp_path: Path) -> None:
    letters = tmp_path / "letters.jsonl"
    append_letter(letters, SkippedSample("k", "cut", "data", "a.tar"))
    assert report("--dead-letter", str(letters))[0] == 0
    assert report("--dead-letter", str(letters), "--strict")[0] == 1


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match="is not an address"):
        CliRunner().invoke(command, ["somewhere"], standalone_mode=False, catch_exceptions=False)
    with pytest.raises(ValueError, match="is not a balancer's address"):
        examine_job("udp://h:1", 1)
