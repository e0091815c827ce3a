"""The doctor: what it says of good and bad machines, and of a balancer that runs."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
from counterpoise.workers.sources.failures import SkippedSample, append_letter

GIB = 2**30


def machine(name: str, **measured: Any) -> Finding:
    """Return the finding of that name about a machine."""
    return next(one for one in look.judge_machine(look.Machine(**measured)) if one.name == name)


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
    assert {"python", "torch", "pyzmq", "processors", "open files", "/dev/shm"} <= set(rows)


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (machine("processors"), GOOD),
        (machine("processors", quota=1.5), WARN),
        (machine("processors", processors=2, load=9.0), WARN),
        (machine("memory"), GOOD),
        (machine("memory", memory_bytes=GIB), WARN),
        (machine("memory", memory_bytes=None), GOOD),
        (machine("transport"), GOOD),
        (machine("transport", why_no_arena="a memory file cannot be made"), WARN),
        (machine("/dev/shm"), GOOD),
        (machine("/dev/shm", shm_bytes=64 * 2**20), WARN),
        (machine("/dev/shm", shm_bytes=None), WARN),
        (machine("open files"), GOOD),
        (machine("open files", open_files=-1), GOOD),
        (machine("open files", open_files=256, most_files=4096), WARN),
        (machine("temporary files"), GOOD),
        (machine("temporary files", is_writable=False), BAD),
        (machine("temporary files", temporary="/tmp/" + "x" * 90), WARN),
    ],
)
def test_what_is_bad_comes_with_advice(finding: Finding, level: str) -> None:
    assert finding.level == level
    assert bool(finding.advice) == (level != GOOD)


def test_the_way_of_a_loader_and_the_reason_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    level, found = report()[1]["loop"]
    assert level == GOOD
    assert found.startswith("local: a loader's own workers load and collate, unless balancer=")
    assert "processes share a data-parallel rank (tp, cp, pp: an embedded balancer)" in found
    assert "local, 8 ranks that meet" in machine("loop", ranks="8").found


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


def test_keys_are_looked_at(folders: Path, tmp_path: Path) -> None:
    found = {role: look.judge_keys(folders / role) for role in ("balancer", "worker", "trainer")}
    assert {one.level for one in found.values()} == {GOOD}
    assert "2 peers allowed" in found["balancer"].found
    assert "worker" in found["worker"].found
    (folders / "worker" / "secret.key").chmod(0o644)
    assert look.judge_keys(folders / "worker").level == BAD
    assert look.judge_keys(tmp_path / "nowhere").level == BAD
    for path in (folders / "balancer" / "allowed").iterdir():
        path.unlink()
    assert look.judge_keys(folders / "balancer").level == WARN


def test_a_wrong_key_file_is_named(folders: Path, tmp_path: Path) -> None:
    def said(folder: Path) -> str:
        found = look.judge_keys(folder)
        assert found.level == BAD
        return found.found

    worker = folders / "worker"
    (worker / "balancer.pub").write_text("ssh-ed25519 AAAA me@here")
    assert "balancer.pub is not a key file" in said(worker)
    allowed = next((folders / "balancer" / "allowed").iterdir())
    (worker / "balancer.pub").write_text(allowed.read_text())
    assert "copy the balancer's public key there" in said(worker)
    (worker / "balancer.pub").unlink()
    assert "balancer.pub" in said(worker)
    trainer = folders / "trainer" / "secret.key"
    trainer.write_text((folders / "trainer" / "balancer.pub").read_text())
    assert "allowed" in said(folders / "trainer")
    trainer.write_text("nothing")
    assert "is not a key file" in said(folders / "trainer")
    assert "secret.key" in said(tmp_path)


def test_a_balancer_with_keys_answers_those_it_knows(folders: Path) -> None:
    with running(server_keys(folders / "balancer")) as address:
        known = examine_job(address, 20, folders / "trainer")
        assert known.findings[0].level in (GOOD, WARN), known
        assert known.status is not None
        stranger = examine_job(address, 0.5)
        assert [one.level for one in stranger.findings] == [BAD]
        assert stranger.unanswered
        worker = examine_job(address, 20, folders / "worker")
        assert "a worker's key may not send GetStatus" in worker.findings[0].found


def test_what_cannot_be_asked_is_told_apart() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        assert [one.level for one in examine_job(address, 2).findings] == [BAD]
        assert report(address) == (3, {"address": (BAD, f"{address}: connection refused")})
        other.listen()
        found = examine_job(address, 0.2)
        assert [(one.level, "no answer" in one.found) for one in found.findings] == [(BAD, True)]
        assert found.unanswered
    assert report("ipc:///nowhere/balancer")[0] == 3


def test_warnings_count_where_that_is_asked_for(tmp_path: Path) -> None:
    letters = tmp_path / "letters.jsonl"
    append_letter(letters, SkippedSample("k", "cut", "data", "a.tar"))
    assert report("--dead-letter", str(letters))[0] == 0
    assert report("--dead-letter", str(letters), "--strict")[0] == 1


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match="is not an address"):
        CliRunner().invoke(command, ["somewhere"], standalone_mode=False, catch_exceptions=False)
    with pytest.raises(ValueError, match="is not an address"):
        examine_job("udp://h:1", 1)
