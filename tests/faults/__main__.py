"""`make faults RUNS=n`: epochs with real processes over tcp that are killed, stopped and cut off.

The report is one JSON object, the last line of standard output; exit status 1 if anything was lost,
came twice, came in another batch, never came, or was left behind.
"""

import argparse
import json
import sys

from .processes import run_trials


def main() -> int:
    """Run the trials that the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="epochs with faults")
    parser.add_argument("--jobs", type=int, default=2, help="epochs at a time")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    asked = parser.parse_args()
    if min(asked.runs, asked.jobs) < 1:
        parser.error(f"--runs {asked.runs} --jobs {asked.jobs}: give at least 1")
    trials = run_trials(
        asked.runs, asked.first, lambda line: print(line, file=sys.stderr), asked.jobs
    )
    print(json.dumps(trials.report()))
    return 1 if trials.wrong else 0


sys.exit(main())
