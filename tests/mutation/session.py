"""A pytest session that has collected its tests and tries mutants with them, each in a copy.

First each test is run in a copy of its own that notes the lines it reaches. Then a mutant is tried
with the tests that reach its line, those that take least first, until one fails. A copy costs a
fork: what is slow to import, the product and the tests are there already.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.mutation.reach import Reached
from tests.mutation.trial import in_a_copy

ROOT = Path(__file__).resolve().parents[2]
# The extensions of kernels are in these.
COMPILED = ("balancer.planning.kernels", "sched.bubble_filling.kernels")
# Tests that take more CPU than this while their lines are noted are not run with mutants.
MOST_S = 8.0
# Of a test with parameters the lines of so many cases are noted, and mutants are tried with these.
CASES = 6
# The alarm is trial.py's: pytest-timeout would take it.
OPTIONS = (
    "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no", "--timeout=0",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a test: the CPU seconds it took, and the lines it reached, by file."""

    cpu_s: float
    lines: dict[str, frozenset[int]]

    def reaches(self, file: str, lines: tuple[int, int]) -> bool:
        """Whether it reached one of the lines from the first to the last."""
        reached = self.lines.get(file, frozenset())
        return any(line in reached for line in range(lines[0], lines[1] + 1))


class TooLong(BaseException):
    """A test has taken more CPU than it may; no `except Exception` takes it for an error."""


@dataclass
class Runner:
    """Runs collected tests one after another; a pytest plugin, to see which fail."""

    failed: list[str] = field(default_factory=list)
    too_long: bool = False
    passed: bool = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        self.passed |= report.when == "call" and report.passed

    def run(self, items: Sequence[pytest.Item], most_s: Callable[[pytest.Item], float]) -> None:
        """Run tests until one fails, or takes more CPU than it may."""
        signal.signal(signal.SIGPROF, self._end_test)
        for item, following in zip_longest(items, items[1:]):
            signal.setitimer(signal.ITIMER_PROF, most_s(item))
            try:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            except TooLong:
                self.too_long = True
            signal.setitimer(signal.ITIMER_PROF, 0)
            if self.too_long:
                self.failed.append(item.nodeid)
            if self.failed:
                return

    def _end_test(self, *_: object) -> None:
        self.too_long = True
        raise TooLong


class Session:
    """A pytest plugin: hands the collected tests to a function instead of running them."""

    def __init__(self, use: Callable[["Session"], None]) -> None:
        self._use = use
        self.items: dict[str, pytest.Item] = {}
        self.error: BaseException | None = None

    def pytest_collection(self) -> None:
        """Leave failing examples as they are found: nobody reads them."""
        # before tests are imported, whose own settings are made from these
        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("mutants", settings(phases=phases))
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.plugins = session.config.pluginmanager
        try:
            self._use(self)
        except BaseException as error:
            # pytest would show it where nobody looks
            self.error = error
        return True

    def run(self, names: Sequence[str], most_s: Callable[[str], float]) -> Runner:
        """Run tests of these names in this process."""
        runner = Runner()
        self.plugins.register(runner)
        runner.run([self.items[name] for name in names], lambda item: most_s(item.nodeid))
        return runner

    def measure(self, files: Sequence[str]) -> tuple[dict[str, Known], dict[str, str]]:
        """Return what is known of some cases of each test, and why others are left out."""
        known, left_out = {}, {}
        for name in some_cases(self.items):
            answer, _ = in_a_copy(lambda name=name: self._measured(name, files), 2 * MOST_S)  # type: ignore[misc]
            if answer is None or answer["why"]:
                left_out[name] = answer["why"] if answer is not None else "too long"
                continue
            lines = {file: frozenset(at) for file, at in answer["lines"].items()}
            known[name] = Known(answer["cpu_s"], lines)
        return known, left_out

    def _measured(self, name: str, files: Sequence[str]) -> dict[str, Any]:
        began = time.process_time()
        with Reached(files) as reached:
            runner = self.run([name], lambda _: MOST_S)
        why = "too long" if runner.too_long else "fails" if runner.failed else ""
        return {
            "why": why or ("" if runner.passed else "skipped"),
            "cpu_s": round(time.process_time() - began, 3),
            "lines": {file: sorted(lines) for file, lines in reached.lines.items()},
        }


def some_cases(names: Iterable[str]) -> list[str]:
    """Return at most CASES cases of each test, evenly spread.

    >>> some_cases(f"test[{k}]" for k in range(100))[:2]
    ['test[0]', 'test[17]']
    """
    cases: dict[str, list[str]] = {}
    for name in names:
        cases.setdefault(test_of(name), []).append(name)
    return [name for each in cases.values() for name in each[:: -(-len(each) // CASES)]]


def test_of(name: str) -> str:
    """Return the test of which a name is a case."""
    return name.partition("[")[0]


def collect(tests: Sequence[str], as_python: bool, use: Callable[[Session], None]) -> None:
    """Collect tests in this process, and hand them to a function."""
    if as_python:
        for folder in COMPILED:
            # what None stands for cannot be imported: kernels are then run by Python
            sys.modules[f"counterpoise.{folder}.compiled"] = None  # type: ignore[assignment]
    os.chdir(ROOT)
    session = Session(use)
    status = pytest.main([*OPTIONS, *tests], plugins=[session])
    if session.error is not None:
        raise session.error
    assert status == 0, f"the tests cannot be collected: {status!r}"
