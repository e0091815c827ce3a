"""Runs `make fuzz TARGET=... RUNS=...`: seeded trials that must be right or a clear error.

The report is one JSON object a target that counts each outcome; the exit status is 1 where one was
neither. A seed that failed is repeated with --first SEED --runs 1.
"""

import argparse
import json
import logging
import sys
import tempfile
from pathlib import Path

from .outcomes import run_target
from .targets import RUNS, TARGETS


def main() -> int:
    """Run the targets that the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"some of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--runs", type=int, help="trials of each target")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--report", type=Path, help="write the report to this file, too")
    asked = parser.parse_args()
    if unknown := [name for name in asked.targets if name not in TARGETS]:
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    logging.getLogger("counterpoise").setLevel(logging.CRITICAL)
    reports = []
    for name in asked.targets or TARGETS:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            trial = TARGETS[name](Path(folder))
            reports.append(run_target(name, trial, asked.runs or RUNS[name], asked.first))
        text = json.dumps(reports[-1].as_json(), indent=1)
        print(text, flush=True)
    if asked.report is not None:
        asked.report.write_text(json.dumps([each.as_json() for each in reports], indent=1) + "\n")
    return 0 if all(each.good for each in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
