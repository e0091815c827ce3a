"""Each row of docs/reference/exit-status.md is shown by a command that ends so."""

import re
import signal
import socket
import subprocess
import sys

import pytest

from counterpoise.balancer.protocol.records import VERSION
from counterpoise.tools.cli import main
from counterpoise.tools.top import command as top
from counterpoise.tools.trace import command as trace
from counterpoise.workers.sources.dead_letters import append_letter
from counterpoise.workers.sources.failures import SkippedSample
from tests.docs.pages import page_named
from tests.forking.popen import COMMAND
from tests.tools.services.commands import Process

NOBODY = "tcp://127.0.0.1:1"
# By status and command: the words. "all" stands for one of its command.
CASES = {
    (0, "all"): "schedule list", (1, "schedule check"): "schedule check 1f1b --limit 1",
    (1, "doctor"): "doctor --dead-letter LETTERS --strict", (2, "all"): "analyze /nowhere",
    (3, "worker --until-lost"): f"worker {NOBODY} --root . --until-lost 0.1",
    (3, "doctor"): f"doctor {NOBODY} --timeout 0.1", (3, "top"): f"top {NOBODY} --once",
    (3, "trace"): f"trace {NOBODY} --seconds 0.1", (4, "prepare"): "prepare BROKEN --out OUT",
    (4, "try"): "try BROKEN",
}  # fmt: skip
# Shown elsewhere: tests/tools/services/test_remote.py has workers of other data and software.
ELSEWHERE = {(4, "worker"), (130, "all other commands")}
SERVICES = {
    "balancer": ["balancer", "--listen", "tcp://127.0.0.1:0"],
    "worker": ["worker", NOBODY, "--root", "."],
    "fleet": ["fleet", "local", "--workers", "1", "--", "--root", "."],
}
USAGE = {
    "option": "schedule list --nonsense",
    "command": "nonsense",
    "port": "balancer --listen tcp://127.0.0.1:TAKEN",
    "port of metrics": "balancer --metrics 127.0.0.1:TAKEN",
    "keys": f"worker {NOBODY} --root . --keys FOLDER",
    "shard": "analyze SHARD",
    "allow": f"worker {NOBODY} --root . --allow no_such:thing",
}


@pytest.fixture
def words(tmp_path):
    """Turn a case into words; what it names is made."""
    (tmp_path / "broken.jsonl").write_text('{"text": "a", "image": "lost.jpg"}\n')
    (tmp_path / "shard.tar").write_bytes(b"no tar")
    append_letter(tmp_path / "letters.jsonl", SkippedSample("k", "cut", "data", "a.tar"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        named = {
            "TAKEN": str(taken.getsockname()[1]), "BROKEN": str(tmp_path / "broken.jsonl"),
            "SHARD": str(tmp_path / "shard.tar"), "LETTERS": str(tmp_path / "letters.jsonl"),
            "OUT": str(tmp_path / "out"), "FOLDER": str(tmp_path),
        }  # fmt: skip
        yield lambda case: re.sub("[A-Z]{3,}", lambda found: named[found[0]], case).split()


def run(words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def documented():
    """Return the page's statuses, each with a command as it names it."""
    rows = re.findall(r"^\| (\d+) \| (.*?) \| ", page_named("exit-status").read_text(), re.M)
    return {
        (int(status), command)
        for status, commands in rows
        for command in re.findall(r"`([^`]+)`", commands) or [commands]
    }


def test_the_page_has_the_cases_of_these_tests_and_no_other():
    stopped = {(0, name) for name in SERVICES}
    assert documented() == {*CASES, *ELSEWHERE, *stopped}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_command_ends_as_the_page_says(monkeypatch, words, case):
    monkeypatch.setattr(top, "ANSWER_S", 0.1)
    monkeypatch.setattr(trace, "ANSWER_S", 0.1)
    monkeypatch.setattr(trace, "GRACE_S", 0.1)
    assert run(words(CASES[case])) == case[0]


@pytest.mark.parametrize("case", USAGE)
def test_what_cannot_run_ends_with_2_and_a_line(capfd, words, case):
    given = words(USAGE[case])
    assert run(given) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    if case.startswith("port"):
        assert given[-1].rpartition(":")[2] in said.splitlines()[-1]


def test_ctrl_c_ends_a_command_with_130(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(trace, "observe", interrupt)
    assert run(["trace", NOBODY]) == 130


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_is_told_to_stop_ends_with_0(service, number):
    process = Process(*SERVICES[service])
    try:
        process.wait_for({"balancer": "listening on", "fleet": "workers are for"}.get(
            service, "working for"))  # fmt: skip
        assert process.end(number) == 0
    finally:
        process.process.kill()


@pytest.mark.slow
def test_python_dash_m_is_the_command(tmp_path):
    """In a folder of its own: the root of the checkout has a module of each name."""
    said = [
        subprocess.check_output([*words, "--version"], cwd=tmp_path, text=True)
        for words in ([COMMAND], [sys.executable, "-m", "counterpoise"])
    ]
    assert said[0] == said[1]
    assert VERSION in said[0]
