"""Runs `make faults RUNS=n`: epochs over tcp whose processes are killed, stopped and cut off.

With KILLS=n, it kills each process of loaders on one host n times instead.

The report is one JSON object, the last line of standard output. The exit status is 1 if a sample
was lost, duplicated or in another batch, if an epoch did not finish, or something was left behind.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from .harness import run_trials
from .killing_trainer import PARTIES
from .one_host import kill_parties


def main() -> int:
    """Run the trials that the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="epochs with faults")
    parser.add_argument("--jobs", type=int, default=2, help="epochs at a time")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kills", type=int, help="kill each party on one host so often instead")
    parser.add_argument("--party", action="append", choices=PARTIES, help="of them; default: all")
    asked = parser.parse_args()
    if asked.kills is not None:
        return _kill(asked.kills, asked.first, asked.party or PARTIES)
    if min(asked.runs, asked.jobs) < 1:
        parser.error(f"--runs {asked.runs} --jobs {asked.jobs}: give at least 1")
    trials = run_trials(
        asked.runs, asked.first, lambda line: print(line, file=sys.stderr), asked.jobs
    )
    print(json.dumps(trials.report()))
    return 1 if trials.wrong else 0


def _kill(kills: int, first: int, parties: Sequence[str]) -> int:
    """Kill each party `kills` times; return the exit status."""
    found = kill_parties(kills, first, lambda line: print(line, file=sys.stderr), parties)
    print(json.dumps(found.report()))
    return 1 if found.wrong or found.left else 0


sys.exit(main())
