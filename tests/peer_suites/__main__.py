"""Runs `make peer-suites SUITES=DIR`: tests of others' DataLoaders, with ours in their place.

Each suite runs twice, with the loader that it was written for (the control) and with ours. Counted
are the tests that the control passes. The exit status is 1 if one of them fails with ours and
exceptions.toml has no reason for it, or if an exception there is not needed.
"""

import argparse
import json
import sys
import tomllib
from pathlib import Path

from .comparison import Comparison, compare, render
from .outcomes import run_tests
from .suites import SUITES, Suite
from .swap import swap_loader

EXCEPTIONS = Path(__file__).with_name("exceptions.toml")


def main() -> int:
    """Run the suites that the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog="make peer-suites", description=__doc__)
    parser.add_argument("checkouts", type=Path, help="a folder with checkouts `data` and `pytorch`")
    parser.add_argument("--only", choices=[suite.name for suite in SUITES], action="append")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    parser.add_argument("--json", action="store_true", help="report as one JSON object")
    asked = parser.parse_args()
    found = []
    try:
        for suite in SUITES:
            if asked.only is None or suite.name in asked.only:
                found.append(run_suite(suite, asked.checkouts, asked.jobs))
                print(render(found[-1]), file=sys.stderr if asked.json else sys.stdout, flush=True)
    except ValueError as error:
        parser.error(str(error))
    if asked.json:
        print(json.dumps({"suites": [each.as_json() for each in found]}))
    return 0 if all(each.good for each in found) else 1


def run_suite(suite: Suite, checkouts: Path, jobs: int) -> Comparison:
    """Run one suite with the control and with ours; ValueError if its file is not there."""
    text, file = suite.read(checkouts), Path(suite.path).name
    control = run_tests(swap_loader(text, suite.control), file, jobs)
    ours = run_tests(swap_loader(text, suite.ours), file, jobs)
    return compare(suite.name, control, ours, read_exceptions().get(suite.name, {}))


def read_exceptions() -> dict[str, dict[str, str]]:
    """Return the tests that may fail, with the reason for each, by suite."""
    return tomllib.loads(EXCEPTIONS.read_text())


if __name__ == "__main__":
    sys.exit(main())
