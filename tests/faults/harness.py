"""Runs epochs with real processes over tcp that are killed, stopped and cut off, by seeds.

Several epochs run side by side, each by a trial runner: most of an epoch with faults is
waiting.
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
from .epoch import SAMPLES_PER_STEP, STEPS
from .trial_runner import TrialRunner
from .trials import Expected, Trials


def run_trials(runs: int, first: int, log: Callable[[str], None], jobs: int = 2) -> Trials:
    """Run epochs of seeds `first`, `first + 1`, ..., `jobs` at a time.

    `log` is called with each line of progress and each error, from several threads.
    """
    trials, started = Trials(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="counterpoise-faults-") as place:
        folder = Path(place)
        count = STEPS * SAMPLES_PER_STEP
        shards = Path(ensure_demo_data(folder / "data", samples=count, shards=4)).parent
        log("a run without faults")
        runners = [TrialRunner(folder / f"runner-{n}", shards) for n in range(min(jobs, runs))]
        expected = runners[0].reference()
        before = leftovers.descriptors(os.getpid())
        seeds = _shared(range(first, first + runs), log)
        with ThreadPoolExecutor(len(runners)) as pool:
            for found in pool.map(lambda runner: _run_all(runner, seeds, expected, log), runners):
                trials.add(found)
        trials.left(leftovers.more_descriptors(os.getpid(), before, "the harness"))
    trials.seconds = time.monotonic() - started
    return trials


def _shared(seeds: range, log: Callable[[str], None]) -> Iterator[int]:
    """Hand out seeds to several threads."""
    lock, left = threading.Lock(), iter(seeds)

    def give() -> int | None:
        with lock:
            seed = next(left, None)
            if seed is not None:
                log(f"run {seed - seeds.start + 1} of {len(seeds)}: seed {seed}")
            return seed

    return iter(give, None)


def _run_all(
    runner: TrialRunner, seeds: Iterator[int], expected: Expected, log: Callable[[str], None]
) -> Trials:
    trials = Trials()
    for seed in seeds:
        found = runner.run(seed, expected)
        for note in found.notes:
            log(note)
        trials.add(found)
    return trials
