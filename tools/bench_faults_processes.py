"""Epochs with real processes over tcp that are killed, stopped and cut off, drawn from a seed.

Several epochs run side by side, each in a lane with a nursery of its own (see
bench_faults_nursery.py): most of an epoch with faults is waiting.
"""

import itertools
import os
import random
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from . import bench_faults_leftovers as leftovers
from .bench_faults_cluster import (
    PARTIES,
    PEERS,
    RANKS,
    SAMPLES_PER_STEP,
    STEPS,
    Cluster,
    Line,
)
from .bench_faults_nursery import MARK, Nursery
from .bench_faults_proxy import WAYS
from .demo_data import ensure_demo_data

KILLS, STOPS, CUTS = 5, 1, 2
# How long a rank takes for a step, and an epoch at most, in seconds.
STEP_S = 0.05
LIMIT_S = 120.0
# A party is stopped, or a peer cut off, for at most so long; a killed one comes back within.
LONGEST_STOP_S = 3.5
LONGEST_CUT_S = 1.0
LONGEST_DOWN_S = 0.4

Expected = list[list[Line]]


@dataclass(slots=True)
class Trials:
    """What all runs together have shown."""

    runs: int = 0
    kills: int = 0
    stops: int = 0
    cuts: int = 0
    lost: int = 0
    duplicated: int = 0
    digest_mismatches: int = 0
    unfinished: int = 0
    leftovers: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def report(self) -> dict[str, object]:
        """Return the figures."""
        names = [name for name in self.__slots__ if name != "seconds"]
        return {name: getattr(self, name) for name in names} | {"seconds": round(self.seconds, 1)}

    def add(self, other: "Trials") -> None:
        """Count another's runs in; its time passed within ours."""
        for name in self.__slots__:
            if name != "seconds":
                setattr(self, name, getattr(self, name) + getattr(other, name))

    def left(self, what: list[str], said: Sequence[str] = ()) -> None:
        """Note what was left behind, and what there is to say besides."""
        self.leftovers += len(what)
        self.notes += [*what, *said]

    @property
    def wrong(self) -> int:
        """How much was not as it should be."""
        found = self.lost + self.duplicated + self.digest_mismatches
        return found + self.unfinished + self.leftovers


class Lane:
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
        found = self._epoch(cluster, lambda: strike(cluster, random.Random(seed), trials), notes)
        trials.unfinished = notes.unfinished
        trials.left(leftovers.settled(lambda: self.left(shm, open_before, cluster)), notes.notes)
        compare(expected, found, cluster.given_again, trials)
        if trials.wrong:
            trials.notes = [f"seed {seed}: {note}" for note in (*cluster.history, *trials.notes)]
        return trials

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


def run_trials(
    runs: int, first: int, tell: Callable[[int, int, str], None], jobs: int = 2
) -> Trials:
    """Run epochs of seeds `first`, `first + 1`, ..., `jobs` at a time.

    `tell` hears (done, of, what comes), from several threads, but one at a time.
    """
    trials, started = Trials(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="counterpoise-faults-") as place:
        folder = Path(place)
        count = STEPS * SAMPLES_PER_STEP
        shards = Path(ensure_demo_data(folder / "data", samples=count, shards=4)).parent
        tell(-1, runs, "without faults")
        lanes = [Lane(folder / f"lane-{lane}", shards) for lane in range(min(jobs, runs))]
        try:
            expected = lanes[0].reference()
            before = leftovers.descriptors(os.getpid())
            seeds = _shared(range(first, first + runs), lambda done, text: tell(done, runs, text))
            with ThreadPoolExecutor(len(lanes)) as pool:
                for found in pool.map(lambda lane: _all(lane, seeds, expected), lanes):
                    trials.add(found)
            trials.left(leftovers.more_descriptors(os.getpid(), before, "the harness"))
        finally:
            for lane in lanes:
                lane.nursery.close()
        for lane in lanes:
            mark = f"{MARK}={lane.mark}"
            trials.left(leftovers.settled(lambda mark=mark: leftovers.processes(mark, but=0)))  # type: ignore[misc]
    trials.seconds = time.monotonic() - started
    return trials


def _shared(seeds: range, tell: Callable[[int, str], None]) -> Iterator[int]:
    """Hand out seeds to several threads."""
    lock, left = threading.Lock(), iter(seeds)

    def give() -> int | None:
        with lock:
            seed = next(left, None)
            if seed is not None:
                tell(seed - seeds.start, f"seed {seed}")
            return seed

    return iter(give, None)


def _all(lane: Lane, seeds: Iterator[int], expected: Expected) -> Trials:
    trials = Trials()
    for seed in seeds:
        trials.add(lane.run(seed, expected))
    return trials


def strike(cluster: Cluster, source: random.Random, trials: Trials) -> None:
    """Let the faults of one epoch happen, at steps that are drawn."""
    kinds = [*["kill"] * KILLS, *["stop"] * STOPS, *["cut"] * CUTS]
    source.shuffle(kinds)
    moments = sorted(source.randint(0, STEPS - 3) for _ in kinds)
    deadline = time.monotonic() + LIMIT_S
    for kind, at in zip(kinds, moments, strict=True):
        late = source.uniform(0.0, 2 * STEP_S)
        cluster.wait(lambda at=at: cluster.over() or cluster.steps_noted() >= at, deadline)  # type: ignore[misc]
        cluster.network.pump(late)
        if cluster.over() or time.monotonic() > deadline:
            return
        FAULTS[kind](cluster, source, trials)


def _kill(cluster: Cluster, source: random.Random, trials: Trials) -> None:
    cluster.kill(source.choice(PARTIES), source.uniform(0.0, LONGEST_DOWN_S))
    trials.kills += 1


def _stop(cluster: Cluster, source: random.Random, trials: Trials) -> None:
    cluster.hold(source.choice(PARTIES), source.uniform(0.1, LONGEST_STOP_S))
    trials.stops += 1


def _cut(cluster: Cluster, source: random.Random, trials: Trials) -> None:
    peer, seconds = source.choice(PEERS), source.uniform(0.0, LONGEST_CUT_S)
    if source.random() < 0.5:
        cluster.cut(peer, seconds)
    else:
        cluster.delay(peer, source.choice(WAYS), seconds, lost=source.random() < 0.5)
    trials.cuts += 1


FAULTS = {"kill": _kill, "stop": _stop, "cut": _cut}


def compare(
    expected: Expected, found: Expected, given_again: list[tuple[int, Line]], trials: Trials
) -> None:
    """Count what is missing, what came twice, what differs; steps given again may not differ."""
    for rank, due in enumerate(expected):
        came = found[rank]
        trials.lost += (_keys(due) - _keys(came)).total()
        trials.duplicated += (_keys(came) - _keys(due)).total()
        trials.digest_mismatches += sum(a != b for a, b in itertools.zip_longest(due, came))
    for rank, line in given_again:
        trials.digest_mismatches += line not in expected[rank]


def _keys(lines: list[Line]) -> Counter[str]:
    return Counter(key for _, batches in lines for _, keys, _ in batches for key in keys)  # type: ignore[attr-defined]
