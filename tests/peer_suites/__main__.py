"""Runs `make peer-suites SUITES=DIR`: tests of others' DataLoaders, with ours in their place.

Each suite runs twice, with the loader that it was written for (the control) and with ours. Counted
are the tests that the control passes. The exit status is 1 if one of them fails with ours and
exceptions.toml has no reason for it, or if an exception there is not needed.
"""

import argparse
import functools
import json
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

from .comparison import Comparison, compare, render
from .outcomes import run_checkout, run_tests
from .suites import ATTACHING, SUITES, CheckoutSuite, Suite
from .swap import swap_loader

EXCEPTIONS = Path(__file__).with_name("exceptions.toml")


def main() -> int:
    """Run the suites that the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog="make peer-suites", description=__doc__)
    parser.add_argument("checkouts", type=Path, help="a folder of checkouts: see CONTRIBUTING.md")
    parser.add_argument("--only", choices=[suite.name for suite in SUITES], action="append")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    parser.add_argument("--json", action="store_true", help="report as one JSON object")
    asked = parser.parse_args()
    out = sys.stderr if asked.json else sys.stdout
    found = []
    for suite in SUITES:
        if asked.only is not None and suite.name not in asked.only:
            continue
        if not (asked.checkouts / suite.path).exists():
            print(f"{suite.name}: left out, {asked.checkouts / suite.path} is not there", file=out)
            continue
        found.append(run_suite(suite, asked.checkouts, asked.jobs))
        print(render(found[-1]), file=out, flush=True)
    if not found:
        parser.error(f"{asked.checkouts} has no checkout that is asked for: see CONTRIBUTING.md")
    if asked.json:
        print(json.dumps({"suites": [each.as_json() for each in found]}))
    return 0 if all(each.good for each in found) else 1


def run_suite(suite: Suite | CheckoutSuite, checkouts: Path, jobs: int) -> Comparison:
    """Run one suite with the control and with ours."""
    place = (checkouts / suite.path).resolve()
    if isinstance(suite, CheckoutSuite):  # a release has other files than the newest commit
        files = {test: place / test.partition("::")[0] for test in suite.tests}
        lacking = [test for test, file in files.items() if not file.exists()]
        if lacking:
            print(f"{suite.name}: this checkout has no {', '.join(lacking)}", file=sys.stderr)
        suite = replace(suite, tests=tuple(test for test in suite.tests if test not in lacking))
    exceptions = read_exceptions().get(suite.name, {})
    if isinstance(suite, Suite):
        control, ours = (
            run_tests(swap_loader(place.read_text(), loader), place.name, jobs)
            for loader in (suite.control, suite.ours)
        )
        return compare(suite.name, control, ours, exceptions)
    control, _ = run_noted(place, replace(suite, name="", ours=suite.control), jobs)
    ours, notes = run_noted(place, suite, jobs)
    return compare(
        suite.name, control, ours, exceptions, notes if suite.ours in ATTACHING else None
    )


@functools.cache  # suites that differ in what is ours alone have one control
def run_noted(place: Path, suite: CheckoutSuite, jobs: int) -> tuple[dict[str, str], Counter[str]]:
    """Return a suite's outcomes with ours, and how often each note was taken."""
    with tempfile.NamedTemporaryFile("r") as notes:
        loader = f"{suite.ours.module}:{suite.ours.name}"
        outcomes = run_checkout(place, suite, loader, jobs, Path(notes.name))
        return outcomes, Counter(notes.read().splitlines())


def read_exceptions() -> dict[str, dict[str, str]]:
    """Return the tests that may fail, with the reason for each, by suite."""
    return tomllib.loads(EXCEPTIONS.read_text())


if __name__ == "__main__":
    sys.exit(main())
