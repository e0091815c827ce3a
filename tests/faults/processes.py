"""Epochs with real processes over tcp that are killed, stopped and cut off, drawn from a seed.

Several epochs run side by side, each in a lane with a nursery of its own (see
tests/faults/nursery.py): most of an epoch with faults is waiting.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from counterpoise.tools.demo.data import ensure_demo_data

from . import leftovers
from .cluster import SAMPLES_PER_STEP, STEPS
from .trial_runner import TrialRunner
from .trials import Expected, Trials


def run_trials(runs: int, first: int, tell: Callable[[str], None], jobs: int = 2) -> Trials:
    """Run epochs of seeds `first`, `first + 1`, ..., `jobs` at a time.

    `tell` hears what comes and what is wrong, from several threads.
    """
    trials, started = Trials(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="counterpoise-faults-") as place:
        folder = Path(place)
        count = STEPS * SAMPLES_PER_STEP
        shards = Path(ensure_demo_data(folder / "data", samples=count, shards=4)).parent
        tell("a run without faults")
        lanes = [TrialRunner(folder / f"lane-{lane}", shards) for lane in range(min(jobs, runs))]
        try:
            expected = lanes[0].reference()
            before = leftovers.descriptors(os.getpid())
            seeds = _shared(range(first, first + runs), tell)
            with ThreadPoolExecutor(len(lanes)) as pool:
                for found in pool.map(lambda lane: _all(lane, seeds, expected, tell), lanes):
                    trials.add(found)
            trials.left(leftovers.more_descriptors(os.getpid(), before, "the harness"))
        finally:
            for lane in lanes:
                lane.close()
        for lane in lanes:
            trials.left(lane.survivors())
    trials.seconds = time.monotonic() - started
    return trials


def _shared(seeds: range, tell: Callable[[str], None]) -> Iterator[int]:
    """Hand out seeds to several threads."""
    lock, left = threading.Lock(), iter(seeds)

    def give() -> int | None:
        with lock:
            seed = next(left, None)
            if seed is not None:
                tell(f"run {seed - seeds.start + 1} of {len(seeds)}: seed {seed}")
            return seed

    return iter(give, None)


def _all(
    lane: TrialRunner, seeds: Iterator[int], expected: Expected, tell: Callable[[str], None]
) -> Trials:
    trials = Trials()
    for seed in seeds:
        found = lane.run(seed, expected)
        for note in found.notes:
            tell(note)
        trials.add(found)
    return trials
