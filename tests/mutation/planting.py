"""Runs tests against a mutant, in a copy of this process that loads the mutant's module changed.

The parent has imported what is slow to import and nothing of the product; so a trial costs a fork,
the product's own import, and its tests until the first that fails.
"""

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A trial ends after this much of CPU: the other cores' load does not matter.
LIMIT_S = 90
# Tests that take more CPU than this are not run with mutants: the others find most, and far sooner.
MOST_S = 1.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a trial; `by` is the first test that failed."""

    outcome: str  # killed, survived, timeout
    by: str
    cpu_s: float


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads a module from a changed syntax tree."""

    tree: ast.Module

    def get_code(self, _: str) -> CodeType:
        return compile(self.tree, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, and gives it a loader that changes it."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self._name, self._path, self._tree = name, path, tree

    def find_spec(self, fullname: str, *_: Any) -> Any:
        if fullname != self._name:
            return None
        loader = _Changed(fullname, str(self._path))
        loader.tree = self._tree
        return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)


class _TooLong(Exception):  # noqa: N818  (an event)
    """A test has taken more CPU than it may."""


class _Chosen:
    """A pytest plugin: orders tests, leaves some out, and notes how long each takes.

    Without known durations it ends each test that takes too long, for the same reason.
    """

    def __init__(self, known_s: dict[str, float]) -> None:
        self.known_s = known_s
        self.measured_s: dict[str, float] = {}
        self.failed: list[str] = []
        self.too_long: set[str] = set()
        signal.signal(signal.SIGPROF, self._end_test)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.known_s:
            items[:] = [i for i in items if i.nodeid in self.known_s]
            items.sort(key=lambda item: self.known_s[item.nodeid])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, 0 if self.known_s else MOST_S)
        yield
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.measured_s[item.nodeid] = round(time.process_time() - began, 3)

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        # A fixture that took too long raises the same again for each test that needs it.
        if call.excinfo is not None and call.excinfo.errisinstance(_TooLong):
            self.too_long.add(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.too_long:
            self.failed.append(report.nodeid)

    def _end_test(self, *_: object) -> None:
        raise _TooLong


def preload(with_torch: bool) -> None:
    """Import what the copies would import each."""
    for name in ("numpy", "numba", "hypothesis.strategies", "torch" if with_torch else "json"):
        importlib.import_module(name)
    product = [name for name in sys.modules if name.split(".")[0] == "counterpoise"]
    assert not product, product


def measure(tests: Sequence[str], as_python: bool) -> dict[str, float]:
    """Return the CPU seconds that each test takes without a mutant.

    They must pass; where numba runs as Python, those that compare it with Python cannot, and are
    left out.
    """
    answer, _ = _in_a_copy(lambda: _run_tests(tests, {}, as_python), limit_s=3600)
    assert answer is not None, "the tests do not end"
    failed = answer["failed"]
    assert as_python or not failed, f"without a mutant these fail: {failed}"
    left_out = {*failed, *answer["too_long"]}
    return {name: took_s for name, took_s in answer["measured_s"].items() if name not in left_out}


def try_mutant(
    module: str, tree: ast.Module, tests: Sequence[str], known_s: dict[str, float], as_python: bool
) -> Verdict:
    """Run the tests with a module (`folder/name` below the root) that is the given tree."""

    def trial() -> dict[str, Any]:
        name = f"counterpoise.{module.replace('/', '.')}"
        sys.meta_path.insert(0, _Finder(name, ROOT / f"{module}.py", tree))
        return _run_tests(tests, known_s, as_python)

    answer, cpu_s = _in_a_copy(trial, LIMIT_S)
    if answer is None:
        return Verdict("timeout", "", cpu_s)
    if answer["status"] == 0:
        return Verdict("survived", "", cpu_s)
    return Verdict("killed", next(iter(answer["failed"]), "the import"), cpu_s)


def _run_tests(tests: Sequence[str], known_s: dict[str, float], as_python: bool) -> dict[str, Any]:
    if as_python:
        numba: Any = importlib.import_module("numba")
        numba.config.DISABLE_JIT = 1
    os.chdir(ROOT)
    chosen = _Chosen(known_s)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no"]
    # Without durations every test is run, to the last.
    options += ["-x"] if known_s else []
    status = pytest.main([*options, *tests], plugins=[chosen])
    return {
        "status": int(status), "failed": chosen.failed, "measured_s": chosen.measured_s,
        "too_long": sorted(chosen.too_long),
    }  # fmt: skip


def _in_a_copy(
    action: Callable[[], dict[str, Any]], limit_s: int
) -> tuple[dict[str, Any] | None, float]:
    """Run something in a forked process; return its answer (None: it did not end) and CPU seconds.

    What it writes is thrown away, and so are its temporary files.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        answer = Path(folder, "answer.json")
        child = os.fork()
        if child == 0:
            _become(folder, limit_s)
            status = 1
            try:
                answer.write_text(json.dumps(action()))
                status = 0
            finally:
                os._exit(status)
        _, _, usage = os.wait4(child, 0)
        _kill_group(child)
        found = json.loads(answer.read_text()) if answer.exists() else None
    return found, round(usage.ru_utime + usage.ru_stime, 2)


def _become(folder: str, limit_s: int) -> None:
    """Make a copy a process group of its own, with limits and a folder for its files."""
    os.setpgid(0, 0)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silent, descriptor)


def _kill_group(group: int) -> None:
    """End what a trial has left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
