"""Hostile messages at a served balancer, with an honest job beside them: a thousand each trial.

Right: the job was given what it always is, and the balancer is alive and small. Silent: it was
given something else. An error of the job, a balancer that has ended and one that has grown are
unclear; there is nothing that an honest job may be refused for.
"""

import weakref
from pathlib import Path
from random import Random

from tests.fuzz.outcomes import Outcome, Trial
from tests.security.served import ServedJob, try_once


def make_trial(folder: Path) -> Trial:
    """Return a trial at a balancer that is started now, and again where it has ended.

    Now, and not in the first trial: that has a deadline, and starting takes long on a busy machine.
    """
    jobs: list[ServedJob] = []

    def start() -> None:
        jobs.append(ServedJob(folder / f"{len(jobs)}"))
        weakref.finalize(trial, jobs[-1].kill)  # a worker that goes on holds our output

    def trial(draw: Random) -> Outcome:
        if jobs[-1].process.poll() is not None:
            start()
        is_well, found = try_once(jobs[-1], draw)
        if is_well:
            return Outcome("right", "messages: served", found)
        is_other = "the job was given" in found and "Error" not in found
        return Outcome("silent" if is_other else "unclear", "messages: served", found)

    start()
    return trial
