"""Runs fault-injection epochs one after another, and reports leaked processes and files."""

import random
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.forking.popen import MARK

from . import leftovers
from .cluster import Cluster
from .epoch import RANKS, STEPS
from .fault_schedule import inject_faults
from .trials import Expected, Trials, compare

# Seconds that a rank takes for a step, and an epoch at most.
STEP_S = 0.05
LIMIT_S = 120.0


class TrialRunner:
    """Runs one epoch after another; its processes write below its folder."""

    def __init__(self, folder: Path, shards: Path) -> None:
        (folder / "tmp").mkdir(parents=True)
        self.folder = folder
        self.mark = str(uuid.uuid4())
        self._shards = shards

    def reference(self) -> Expected:
        """Return each rank's steps of a run without faults; RuntimeError if that run fails."""
        cluster = self._cluster("reference", 0.0)
        (cluster.folder / "faults-over").touch()
        trials = Trials()
        found = self._epoch(cluster, lambda: None, trials)
        if trials.notes or [len(lines) for lines in found] != [STEPS] * RANKS:
            raise RuntimeError(f"the run without faults failed: {trials.notes or found}")
        return found

    def run(self, seed: int, expected: Expected) -> Trials:
        """Run an epoch with the faults of a seed."""
        cluster = self._cluster(f"run-{seed}", STEP_S)
        trials, notes = Trials(runs=1), Trials()
        shm = leftovers.segments()
        found = self._epoch(
            cluster, lambda: inject_faults(cluster, random.Random(seed), trials, LIMIT_S), notes
        )
        trials.unfinished = notes.unfinished
        trials.left(leftovers.settled(lambda: self.left(shm, cluster)), notes.notes)
        compare(expected, found, cluster.redelivered, trials)
        if trials.wrong:
            trials.notes = [f"seed {seed}: {note}" for note in (*cluster.history, *trials.notes)]
        return trials

    def left(self, shm: set[str], cluster: Cluster) -> list[str]:
        """Return the processes, files and sockets that a finished epoch has left behind."""
        return [
            *leftovers.processes(f"{MARK}={self.mark}"),
            *cluster.leftovers(),
            *leftovers.unix_sockets(self.folder),
            *leftovers.temporary_files(self.folder / "tmp"),
            *leftovers.shared_memory(shm),
        ]

    def _cluster(self, name: str, step_s: float) -> Cluster:
        return Cluster(self.folder / name, self._shards, step_s, self.folder / "tmp", self.mark)

    def _epoch(self, cluster: Cluster, faults: Callable[[], None], trials: Trials) -> Expected:
        """Run one epoch; return the steps that each rank has noted."""
        deadline = time.monotonic() + LIMIT_S
        not_ended: list[str] = []
        try:
            cluster.start_all()
            faults()
            (cluster.folder / "faults-over").touch()
            cluster.wait(cluster.finished, deadline)
            if not cluster.finished():
                trials.unfinished += 1
                trials.notes.append(f"not over after {LIMIT_S:.0f} s")
        finally:
            not_ended = cluster.close()
        errors = [*not_ended, *cluster.errors()]
        trials.unfinished += bool(errors and not trials.unfinished)
        trials.notes += errors
        return [cluster.lines(rank) for rank in range(RANKS)]
