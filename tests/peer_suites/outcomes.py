"""Runs tests in a pytest of its own, and reads how each test ended."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from .suites import CheckoutSuite

TEST_TIMEOUT_S = 900.0  # above the suites' own limits, so that a hang is a failure of one test
_HERE = Path(__file__).parent
_PLUGIN = "swap_plugin.py"
# its sitecustomize.py lets torchvision and torchaudio for CUDA be imported by torch for CPUs
_WATCHED = _HERE.parent / "programs/watched"


def run_tests(text: str, file: str, jobs: int) -> dict[str, str]:
    """Run a test file's `text` under the name `file`; return each test's outcome by its name.

    An outcome is "passed", "skipped", or what the failure says. A test that ends its process, or
    hangs, fails alone: pytest-xdist starts another process for the others. RuntimeError if pytest
    did not report.
    """
    with tempfile.TemporaryDirectory(prefix="counterpoise-peers-") as place:
        (Path(place) / file).write_text(text)
        return _run_pytest([file], Path(place), Path(place), jobs, {})


def run_checkout(
    checkout: Path, suite: CheckoutSuite, loader: str, jobs: int, notes: Path
) -> dict[str, str]:
    """Run a suite's tests where they lie, in `checkout`; return outcomes as `run_tests` does.

    `loader` (MODULE:NAME) stands for the suite's control in each process of pytest, or is a
    function that has ours used in another way, and writes a line to `notes` for each use.
    """
    with tempfile.TemporaryDirectory(prefix="counterpoise-peers-") as name:
        place, folder = Path(name), checkout
        for file in (_PLUGIN, "attached.py", "stateful.py", *suite.drivers):
            shutil.copy(_HERE / file, place)
        path = [place, _WATCHED, *(checkout / folder for folder in suite.imports)]
        named = {"PEER_LOADER": loader, "PEER_JOINED": suite.joined, "PEER_NOTES": str(notes)}
        named |= {"PEER_HIDDEN": " ".join(suite.hidden), "PEER_CHECKOUT": str(checkout)}
        named |= {"PEER_CONTROL": f"{suite.control.module}:{suite.control.name}"}
        # models of a few thousand weights: threads would wait for each other
        named |= {"PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}
        if suite.has_hub:
            folder = Path(make_hub(checkout).name)
            named |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
        tests = [checkout / test for test in suite.tests] + [place / file for file in suite.drivers]
        arguments = [*map(str, tests), "-p", Path(_PLUGIN).stem, "-k", suite.selected]
        arguments += [f"--rootdir={checkout}", f"--confcutdir={checkout}"]
        return _run_pytest(arguments, folder, place, jobs, named)


@functools.cache
def make_hub(checkout: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a folder in which a checkout's tests find what they fetch otherwise (hub.py)."""
    hub = tempfile.TemporaryDirectory(prefix="counterpoise-hub-")
    command = [sys.executable, "-P", str(_HERE / "hub.py"), hub.name, str(checkout)]
    environment = {**os.environ, "PYTHONPATH": str(_WATCHED), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"hub.py ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return hub


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
