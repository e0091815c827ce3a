"""Epochs with real processes over tcp that are killed and stopped at moments drawn from a seed."""

import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .bench_faults_cluster import PARTIES, Cluster
from .bench_faults_trainer import SAMPLES_PER_STEP
from .demo_data import ensure_demo_data

SAMPLES = 160
KILLS = 5
# How long the trainer takes for a step, and an epoch at most, in seconds.
STEP_S = 0.05
LIMIT_S = 240.0
POLL_S = 0.02
# A process is stopped instead of killed with this chance, and for at most so long.
STOPPED = 0.3
LONGEST_STOP_S = 3.0

Batches = dict[int, list[object]]


@dataclass(slots=True)
class Trials:
    """What all runs together have shown."""

    runs: int = 0
    kills: int = 0
    stops: int = 0
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


def run_trials(runs: int, first: int, tell: Callable[[int, int, str], None]) -> Trials:
    """Run epochs of seeds `first`, `first + 1`, ...; `tell` hears (done, of, what comes)."""
    trials, started = Trials(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="counterpoise-faults-") as place:
        folder = Path(place)
        shards = Path(ensure_demo_data(folder / "data", samples=SAMPLES, shards=4)).parent
        shm = _shared_memory()
        tell(-1, runs, "without faults")
        expected = _epoch(Cluster(_new(folder / "reference"), shards, 0.0), None, trials)
        for number in range(runs):
            tell(number, runs, f"{KILLS} faults, seed {first + number}")
            cluster = Cluster(_new(folder / f"run-{number}"), shards, STEP_S)
            found = _epoch(cluster, random.Random(first + number), trials)
            _compare(expected, found, trials)
            trials.runs += 1
        trials.leftovers += len(_shared_memory() - shm)
    trials.seconds = time.monotonic() - started
    return trials


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _epoch(cluster: Cluster, source: random.Random | None, trials: Trials) -> Batches:
    """Run one epoch, with faults if there is a source of them; return its steps."""
    deadline = time.monotonic() + LIMIT_S
    cluster.start_all()
    try:
        for at in _moments(source):
            _wait(cluster, lambda at=at: cluster.steps_noted() >= at, deadline)  # type: ignore[misc]
            if source is not None and cluster.trainer_status() is None:
                _strike(cluster, source, trials)
        _wait(cluster, lambda: False, deadline)
        if cluster.trainer_status() != 0:
            trials.unfinished += 1
            trials.notes.append(_last_words(cluster.folder / "trainer.log"))
    finally:
        cluster.close()
    left = cluster.leftovers()
    trials.leftovers += len(left)
    trials.notes += left
    return _read(cluster.folder / "steps.jsonl")


def _moments(source: random.Random | None) -> list[int]:
    """Return at how many noted steps the faults come."""
    if source is None:
        return []
    last = SAMPLES // SAMPLES_PER_STEP - 2
    return sorted(source.randint(0, last) for _ in range(KILLS))


def _strike(cluster: Cluster, source: random.Random, trials: Trials) -> None:
    party = source.choice(PARTIES)
    time.sleep(source.uniform(0.0, 2 * STEP_S))
    if source.random() < STOPPED:
        cluster.hold(party, source.uniform(0.1, LONGEST_STOP_S))
        trials.stops += 1
        return
    if cluster.running[party].poll() is not None:
        return
    cluster.kill(party)
    trials.kills += 1
    time.sleep(source.uniform(0.0, 0.5))
    cluster.start(party)


def _wait(cluster: Cluster, done: Callable[[], bool], deadline: float) -> None:
    """Wait for something, the trainer's end or the deadline."""
    while not done() and cluster.trainer_status() is None and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _read(path: Path) -> Batches:
    """Return the steps that a trainer has noted; a step given again must be the same.

    A line that a kill has cut short is not a step.
    """
    steps: Batches = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            number, batches = json.loads(line)
        except ValueError:
            continue
        steps[number] = batches if steps.get(number, batches) == batches else ["differs"]
    return steps


def _compare(expected: Batches, found: Batches, trials: Trials) -> None:
    keys, due = _keys(found), _keys(expected)
    trials.lost += (due - keys).total()
    trials.duplicated += (keys - due).total()
    trials.digest_mismatches += sum(found.get(step) != expected[step] for step in expected)


def _keys(steps: Batches) -> Counter[str]:
    return Counter(
        key
        for batches in steps.values()
        for batch in batches
        if isinstance(batch, list)
        for key in batch[2]
    )


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"the trainer did not end well: {lines[-1] if lines else 'without a word'}"


def _shared_memory() -> set[str]:
    place = Path("/dev/shm")
    return {each.name for each in place.iterdir()} if place.is_dir() else set()
