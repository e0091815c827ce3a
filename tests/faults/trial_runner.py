"""A lane of `make faults`: runs one epoch after another, and looks what is left."""

import random
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from . import leftovers
from .cluster import RANKS, STEPS, Cluster
from .fault_schedule import strike
from .nursery import MARK, Nursery
from .trials import Expected, Trials, compare

# How long a rank takes for a step, and an epoch at most, in seconds.
STEP_S = 0.05
LIMIT_S = 120.0


class TrialRunner:
    """Runs one epoch after another; what its processes write lies below its folder."""

    def __init__(self, folder: Path, shards: Path) -> None:
        (folder / "tmp").mkdir(parents=True)
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.nursery = Nursery(folder / "tmp", self.mark)
        self._shards = shards

    def reference(self) -> Expected:
        """Return what each rank is given where nothing goes wrong; RuntimeError if it does not."""
        cluster = Cluster(self.nursery, self.folder / "reference", self._shards, 0.0)
        (cluster.folder / "struck").touch()
        trials = Trials()
        found = self._epoch(cluster, lambda: None, trials)
        if trials.notes or [len(lines) for lines in found] != [STEPS] * RANKS:
            raise RuntimeError(f"the run without faults failed: {trials.notes or found}")
        return found

    def run(self, seed: int, expected: Expected) -> Trials:
        """Run an epoch with the faults of a seed."""
        cluster = Cluster(self.nursery, self.folder / f"run-{seed}", self._shards, STEP_S)
        trials, notes = Trials(runs=1), Trials()
        shm, open_before = leftovers.segments(), leftovers.descriptors(self.nursery.pid)
        found = self._epoch(
            cluster, lambda: strike(cluster, random.Random(seed), trials, LIMIT_S), notes
        )
        trials.unfinished = notes.unfinished
        trials.left(leftovers.settled(lambda: self.left(shm, open_before, cluster)), notes.notes)
        compare(expected, found, cluster.given_again, trials)
        if trials.wrong:
            trials.notes = [f"seed {seed}: {note}" for note in (*cluster.history, *trials.notes)]
        return trials

    def close(self) -> None:
        """End the nursery."""
        self.nursery.close()

    def survivors(self) -> list[str]:
        """Return which processes outlive the nursery."""
        return leftovers.settled(lambda: leftovers.processes(f"{MARK}={self.mark}", but=0))

    def left(self, shm: set[str], open_before: list[str], cluster: Cluster) -> list[str]:
        """Return what an epoch that is over has left behind."""
        return [
            *leftovers.processes(f"{MARK}={self.mark}", but=self.nursery.pid),
            *cluster.leftovers(),
            *leftovers.unix_sockets(self.folder),
            *leftovers.temporary_files(self.folder / "tmp"),
            *leftovers.shared_memory(shm),
            *leftovers.more_descriptors(self.nursery.pid, open_before, "the nursery"),
        ]

    def _epoch(self, cluster: Cluster, faults: Callable[[], None], trials: Trials) -> Expected:
        """Run one epoch; return the steps that each rank has noted."""
        deadline = time.monotonic() + LIMIT_S
        stubborn: list[str] = []
        try:
            cluster.start_all()
            faults()
            (cluster.folder / "struck").touch()
            cluster.wait(cluster.finished, deadline)
            if not cluster.finished():
                trials.unfinished += 1
                trials.notes.append(f"not over after {LIMIT_S:.0f} s")
        finally:
            stubborn = cluster.close()
        words = [*stubborn, *cluster.last_words()]
        trials.unfinished += bool(words and not trials.unfinished)
        trials.notes += words
        return [cluster.lines(rank) for rank in range(RANKS)]
