"""Runs tests in a pytest of its own, and reads how each test ended."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from .suites import CheckoutSuite

TEST_TIMEOUT_S = 900.0  # above the suites' own limits, so that a hang is a failure of one test
_PLUGIN = Path(__file__).with_name("swap_plugin.py")


def run_tests(text: str, file: str, jobs: int) -> dict[str, str]:
    """Run a test file's `text` under the name `file`; return each test's outcome by its name.

    An outcome is "passed", "skipped", or what the failure says. A test that ends its process, or
    hangs, fails alone: pytest-xdist starts another process for the others. RuntimeError if pytest
    did not report.
    """
    with tempfile.TemporaryDirectory(prefix="counterpoise-peers-") as place:
        (Path(place) / file).write_text(text)
        return _run_pytest([file], Path(place), Path(place), jobs, {})


def run_checkout(checkout: Path, suite: CheckoutSuite, loader: str, jobs: int) -> dict[str, str]:
    """Run a suite's tests where they lie, in `checkout`; return outcomes as `run_tests` does.

    `loader` (MODULE:NAME) stands for torch's DataLoader in each process of pytest.
    """
    with tempfile.TemporaryDirectory(prefix="counterpoise-peers-") as place:
        (Path(place) / _PLUGIN.name).write_text(_PLUGIN.read_text())
        path = [place, *(str(checkout / folder) for folder in suite.imports)]
        named = {"PEER_LOADER": loader, "PEER_HIDDEN": " ".join(suite.hidden)}
        named |= {"PYTHONPATH": os.pathsep.join(path)}
        arguments = [*suite.tests, "-p", _PLUGIN.stem]
        arguments += [f"--rootdir={checkout}", f"--confcutdir={checkout}"]
        return _run_pytest(arguments, checkout, Path(place), jobs, named)


def _run_pytest(
    arguments: Sequence[str], folder: Path, place: Path, jobs: int, named: Mapping[str, str]
) -> dict[str, str]:
    """Run pytest in `folder`, with its files in `place` and variables `named`; read its report."""
    settings, log, report = place / "pytest.ini", place / "log", place / "r.xml"
    settings.write_text("[pytest]\n")  # not the settings of a folder above
    command = [sys.executable, "-m", "pytest", *arguments, "-c", str(settings), "-q"]
    command += ["-n", str(jobs), f"--junitxml={report}"]
    command += [f"--timeout={TEST_TIMEOUT_S}", "--timeout-method=thread"]
    with log.open("w") as out:
        # a session of its own: what tests leave behind ends with it
        done = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **named}, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
        try:
            done.wait()
        finally:
            _end_session(done.pid)
    if not report.is_file():
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{log.read_text()[-4000:]}")
    return read_outcomes(report.read_text())


def _end_session(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # nothing was left
        os.killpg(leader, signal.SIGKILL)


def read_outcomes(report: str) -> dict[str, str]:
    """Return the outcome of each test in a JUnit report, named module.Class.test."""
    found = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name')}"
        bad = [case.find(kind) for kind in ("failure", "error")]
        messages = [each.get("message", "") for each in bad if each is not None]
        if messages:
            found[name] = " ".join(messages[0].split()) or "failed"
        else:
            found[name] = "passed" if case.find("skipped") is None else "skipped"
    return found
