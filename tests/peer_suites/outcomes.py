"""Runs a file of tests in a pytest of its own, and reads how each test ended."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

TEST_TIMEOUT_S = 900.0  # above the suites' own limits, so that a hang is a failure of one test


def run_tests(text: str, file: str, jobs: int) -> dict[str, str]:
    """Run a test file's `text` under the name `file`; return each test's outcome by its name.

    An outcome is "passed", "skipped", or what the failure says. A test that ends its process, or
    hangs, fails alone: pytest-xdist starts another process for the others. RuntimeError if pytest
    did not report.
    """
    with tempfile.TemporaryDirectory(prefix="counterpoise-peers-") as place:
        folder = Path(place)
        (folder / file).write_text(text)
        (folder / "pytest.ini").write_text("[pytest]\n")  # not the settings of a folder above
        command = [sys.executable, "-m", "pytest", file, "-q", "-n", str(jobs), "--junitxml=r.xml"]
        command += [f"--timeout={TEST_TIMEOUT_S}", "--timeout-method=thread"]
        log = folder / "log"
        with log.open("w") as out:
            # a session of its own: what tests leave behind ends with it
            done = subprocess.Popen(
                command, cwd=folder, stdout=out, stderr=out, start_new_session=True
            )
            try:
                done.wait()
            finally:
                _end_session(done.pid)
        report = folder / "r.xml"
        if not report.is_file():
            raise RuntimeError(f"pytest ended with {done.returncode}:\n{log.read_text()[-4000:]}")
        return read_outcomes(report.read_text())


def _end_session(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # nothing was left
        os.killpg(leader, signal.SIGKILL)


def read_outcomes(report: str) -> dict[str, str]:
    """Return the outcome of each test in a JUnit report, named Class.test."""
    found = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        group = case.get("classname", "").split(".")[-1]
        name = f"{group}.{case.get('name')}"
        bad = [case.find(kind) for kind in ("failure", "error")]
        messages = [each.get("message", "") for each in bad if each is not None]
        if messages:
            found[name] = " ".join(messages[0].split()) or "failed"
        else:
            found[name] = "passed" if case.find("skipped") is None else "skipped"
    return found
