"""One rank of test_ranks: takes its microbatches in several manners, and writes down what came.

python rank_trainer.py FOLDER, with RANK and WORLD_SIZE set. In order:
  plain    two epochs
  resume   again, from the ledger in FOLDER/ledger.json
  other    the ranks have the samples in another order, without keys; or with keys: keyed;
           or all of them cost the same: table
  apart    the ranks begin at different epochs
  broken   a sample does not decode, on one of them
  torn     two epochs, in which next() is left by exceptions at random moments, of each rank its own
  inline   the same without workers
  left     an epoch that follows one which each rank has left elsewhere
  late     one epoch, whose end rank 1 takes when rank 0 has already ended, without a goodbye
"""

import faulthandler
import itertools
import json
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from torch import distributed

from tests.flat_options import balanced_loader
from tests.loader import balanced_data as made
from tests.loader.alarms import is_in_fork_hook

COUNT, STEP, STEPS = 61, 16, 4
TIMES = int(os.environ.get("TIMES", "5"))  # that next() is interrupted, of each rank


def make(dataset=None, **changes):
    given: dict[str, Any] = {
        "grouping": "isf",
        "budgets": {"tokens": 120},
        "accumulate": "auto",
        "seed": 3,
    }
    given |= {"samples_per_step": STEP, "shuffle": True, "layout": "padded"}
    return balanced_loader(dataset or made.Augmented(COUNT), **given, **changes)


def take(loader, epochs, before_step=lambda _: None):
    """Return (epoch, step, microbatch, rank, keys, digest) of all that comes."""
    found = []
    while loader.state_dict()["epoch"] < epochs:
        for batch in loader:
            info = loader.step_info
            place = info.epoch, info.step, info.microbatch, info.rank
            found.append([*place, list(info.keys), made.digest(batch)])
            if info.last:
                before_step(info.step + 1)
    return found


class InterruptedAtRandom(BaseException):
    """What a signal's handler raises in the middle of next()."""


def interrupt(_number, frame):
    is_outside = frame.f_code is take_torn.__code__  # next() has returned, or was not called yet
    if not is_outside and not is_in_fork_hook(frame):
        raise InterruptedAtRandom


def take_torn(loader, epochs, seed, times):
    """Take epochs; so many calls of next() are interrupted, and made again."""
    source, found = random.Random(seed), []
    signal.signal(signal.SIGALRM, interrupt)
    while loader.state_dict()["epoch"] < epochs:
        batches = iter(loader)
        while True:
            try:
                if times and source.random() < 0.6:
                    signal.setitimer(signal.ITIMER_REAL, source.choice((1e-4, 1e-3, 1e-2, 0.1)))
                try:
                    batch = next(batches)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except InterruptedAtRandom:
                times -= 1
                continue
            except StopIteration:
                break
            info = loader.step_info
            place = info.epoch, info.step, info.microbatch, info.rank
            found.append([*place, list(info.keys), made.digest(batch)])
    return found


def broken(count):
    return made.Augmented(count, broken={3, 30}, unreadable={7, 50})


class Numbers:
    """Samples that a folder lists in another order on each rank."""

    def __init__(self, rank):
        self.order = random.Random(rank).sample(range(COUNT), COUNT)

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return {"x": self.order[index]}


class KeyedNumbers(Numbers):
    def key(self, index):
        return f"k{self.order[index]}"


def wait_for(path):
    bell = threading.Event()
    while not path.exists():
        bell.wait(0.02)


def attempt(action):
    try:
        return action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(folder):
    faulthandler.dump_traceback_later(200)  # where it hangs, if it does
    rank = int(os.environ["RANK"])
    distributed.init_process_group(
        "gloo", f"file://{folder}/meeting", rank=rank, world_size=int(os.environ["WORLD_SIZE"])
    )
    came, written = {}, Path(folder, f"{rank}.json")
    given = {"num_workers": 1, "prefetch_factor": 1}

    loader = make(**given)
    came["plain"] = attempt(lambda: take(loader, 2))
    came["ledger"] = loader.state_dict()
    loader.load_state_dict(json.loads(Path(folder, "ledger.json").read_text()))
    came["resume"] = attempt(lambda: take(loader, 2))
    loader.set_epoch(rank)
    came["apart"] = attempt(lambda: take(loader, 2))
    loader.close()

    for manner, kind in (("other", Numbers), ("keyed", KeyedNumbers), ("table", Numbers)):
        by_table = {"tokens": [1] * COUNT}
        cost = by_table if manner == "table" else lambda sample: {"tokens": sample["x"] % 31}
        loader = make(kind(rank), **given, cost=cost)
        came[manner] = attempt(lambda loader=loader: take(loader, 1))
        loader.close()

    loader = make(made.Augmented(COUNT, unreadable={7}), **given, timeout=5)
    came["broken"] = attempt(lambda: take(loader, 2))
    loader.close()

    for manner, workers in (("torn", 1), ("inline", 0)):
        options = {"num_workers": workers, "on_error": "skip", "timeout": 60}
        loader = make(broken(COUNT), **options)
        came[manner] = attempt(lambda loader=loader: take_torn(loader, 2, rank + 1, TIMES))
        loader.close()

    loader = make(**given)
    list(itertools.islice(loader, 1 + rank))
    came["left"] = attempt(lambda: take(loader, 2))
    loader.close()

    def before_step(step):
        if rank == 1 and step == STEPS - 1:
            wait_for(Path(folder, "0.json"))

    loader = make(**given)
    came["late"] = attempt(lambda: take(loader, 1, before_step))
    written.with_suffix(".part").write_text(json.dumps(came))
    written.with_suffix(".part").rename(written)


if __name__ == "__main__":
    main(*sys.argv[1:])
