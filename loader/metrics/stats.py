"""Counts what one loader has delivered, and what its loop has waited for.

Time is taken where `next()` is called and where it returns. The wait for the first batch of an
iteration (workers start, the first window is planned) is apart from the others: those are *exposed*
waits, time that training stands still for want of data.
"""

import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableSequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler

from ...workers.processes.start_method import shared_numbers
from ...workers.sources.cache_files import replace_file
from ...workers.sources.costs import sample_nbytes
from .families import DELIVERED, FORECAST, RANDOM
from .report import report_lines

logger = logging.getLogger(__name__)
# A file of a run that goes on is at most this old.
SAVE_S = 60.0
# Reasons of holes that are counted apart, and characters of one; others count together.
MOST_REASONS, REASON_CHARACTERS = 32, 60
OTHER_REASONS = "other reasons"


class LoopStats:
    """Counts of one loader in this process; `save_to` is the file that gets them, None for none.

    reports: rank 0 writes a report to standard error after each epoch. clock: returns seconds.
    """

    def __init__(
        self, save_to: Path | None = None, reports: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self.save_to, self.reports, self._clock = save_to, reports, clock
        self.batches = self.steps = self.samples = self.nbytes = 0
        self.start_s = self.wait_s = self.train_s = self.step_wait_s = 0.0
        self.holes, self.sources = Counter[str](), Counter[str]()
        self.costs, self.padding = Counter[str](), Counter[str]()
        self.step_costs = Counter[str]()
        # Of the last step, and sums over all of them, by kind and resource.
        self.imbalance: dict[str, dict[str, float]] = {}
        self._imbalances: dict[str, Counter[str]] = {FORECAST: Counter(), DELIVERED: Counter()}
        self._planned_steps = 0
        # By kind: the work and the times of all steps.
        self._work_sums, self._time_sums = Counter[str](), Counter[str]()
        self.ranks: int | None = None
        self.rank = int(os.environ.get("RANK", 0))
        self.workers = 0
        self.ready: int | None = None
        self._work: MutableSequence[int] | None = None
        self._former_work_s = 0.0
        self._handed_out = 0
        self._step: tuple[int, int] | None = None
        self._asked: float | None = None
        self._returned: float | None = None
        self._saved = self._clock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as one that has counted nothing: a copy of a loader is another loop."""
        return LoopStats, (self.save_to, self.reports)

    def new_workers(self, context: Any, count: int) -> MutableSequence[int]:
        """Return shared numbers for new workers to add up their work in: see arena/worker.py.

        context: that of multiprocessing with which they are started.
        """
        self._former_work_s = self.work_s or 0.0
        self._work, self.workers = shared_numbers(context, 2 * count), count
        return self._work

    def start(self) -> None:
        """Note that an iteration begins."""
        self._asked = self._returned = self._step = None
        self._handed_out = 0

    def wait(self) -> None:
        """Note that next() was called."""
        now = self._clock()
        if self._returned is not None:
            self.train_s += now - self._returned
            self._returned = now
        self._asked = now

    def take(self, parts: Iterable[tuple[Any, Any]]) -> None:
        """Count microbatches, each with its StepInfo, that next() returns now."""
        waited = self._end_wait()
        for batch, info in parts:
            if not self.batches:
                self.rank, self.ranks = info.rank, info.ranks
            self._count(batch, info.samples)
            place = info.epoch, info.step
            if place != self._step:
                self._step, self.step_wait_s = place, 0.0
                self.steps += 1
                self.step_costs.clear()
            self.costs.update(info.costs)
            self.step_costs.update(info.costs)
            self.padding.update(info.padding)
            self.sources.update(info.sources)
        self.step_wait_s += waited

    def take_plain(self, batch: Any, samples: int) -> None:
        """Count a batch of a plain loop, each of which counts as a step."""
        self.step_wait_s = self._end_wait()
        self.steps += 1
        self._count(batch, samples)

    def take_holes(self, holes: Iterable[Any]) -> None:
        """Count samples that could not be used, by what begins their reason."""
        for hole in holes:
            reason = hole.reason.partition(":")[0][:REASON_CHARACTERS]
            is_known = reason in self.holes or len(self.holes) < MOST_REASONS
            self.holes[reason if is_known else OTHER_REASONS] += 1

    def take_plan(self, plan: Any, holes: Collection[int], config: Any) -> None:
        """Note how unequal the ranks' costs of a step are, and how long they wait for each other.

        plan: a PlannedStep of this PlanConfig; holes: their ordinals.
        """
        from .waits import step_times  # here: a plain loop plans nothing

        times = step_times(plan, holes, config)
        for kind, step in times.items():
            self._work_sums[kind] += step.work  # type: ignore[assignment]
            self._time_sums[kind] += step.time  # type: ignore[assignment]
        self._planned_steps += 1
        for kind in (FORECAST, DELIVERED):
            ratios = dict(zip(config.resources, times[kind].imbalance, strict=True))
            self.imbalance[kind] = ratios
            for name, ratio in ratios.items():
                self._imbalances[kind][name] += ratio

    def end(self) -> None:
        """Note that an iteration is over, unless that is noted."""
        if self._asked is None and self._returned is None:
            return
        self._asked = self._returned = None
        self._handed_out = self._done  # what says that a stream is over is never handed out
        self.save()
        if self.reports and not self.rank:
            sys.stderr.write("\n".join(report_lines(self.summary())) + "\n")

    def save(self) -> None:
        """Write the file, if there is one: that of rank 3 of run.json is run-3.json."""
        self._saved = self._clock()
        if self.save_to is None:
            return
        path = self.save_to
        if self.rank:
            path = path.with_stem(f"{path.stem}-{self.rank}")
        if not replace_file(path, (json.dumps(self.summary(), indent=1) + "\n").encode()):
            self.save_to = None  # no reason to end a run
            logger.warning("%s could not be written: its loop's stats are kept no longer", path)

    @property
    def work_s(self) -> float | None:
        """Seconds that workers were at work, None where they do not say."""
        return None if self._work is None else self._former_work_s + sum(self._work[::2]) / 1e9

    def summary(self) -> dict[str, Any]:
        """Return all counts as JSON-able values, units in their names."""
        seconds = self.start_s + self.wait_s + self.train_s
        running = self.wait_s + self.train_s
        work_s = self.work_s
        return {
            "rank": self.rank,
            "ranks": self.ranks,
            "batches": self.batches,
            "steps": self.steps,
            "samples": self.samples,
            "bytes": self.nbytes,
            "start_seconds": self.start_s,
            "wait_seconds": self.wait_s,
            "train_seconds": self.train_s,
            "wait_share": _share(self.wait_s, running),
            "wait_seconds_per_step": _share(self.wait_s, self.steps),
            "last_step_wait_seconds": self.step_wait_s,
            "samples_per_second": _share(self.samples, seconds),
            "bytes_per_second": _share(self.nbytes, seconds),
            "workers": self.workers,
            "work_seconds": work_s,
            "worker_busy_share": work_s and min(1.0, _share(work_s, self.workers * seconds)),
            "queue_batches": self.queue_batches,
            "holes": dict(self.holes),
            "sources": dict(self.sources),
            "costs": dict(self.costs),
            "padding": dict(self.padding),
            "padding_share": {
                name: _share(padded, self.costs[name]) for name, padded in self.padding.items()
            },
            "step_costs": dict(self.step_costs),
            "waiting": {
                kind: 1 - _share(work, self._time_sums[kind])
                for kind, work in self._work_sums.items()
            },
            "random_over_delivered": _share(self._time_sums[RANDOM], self._time_sums[DELIVERED])
            or None,
            "imbalance": self.imbalance,
            "mean_imbalance": {
                kind: {name: total / self._planned_steps for name, total in sums.items()}
                for kind, sums in self._imbalances.items()
                if sums
            },
        }

    @property
    def queue_batches(self) -> int | None:
        """Batches that are made and not handed out, None where that is not known."""
        if self.ready is not None:
            return self.ready
        return None if self._work is None else max(0, self._done - self._handed_out)

    @property
    def _done(self) -> int:
        return 0 if self._work is None else sum(self._work[1::2])

    def _end_wait(self) -> float:
        """Return the exposed seconds of the wait that ends now."""
        now = self._clock()
        waited = 0.0 if self._asked is None else now - self._asked
        is_first, self._returned, self._asked = self._returned is None, now, None
        if is_first:
            self.start_s += waited
            return 0.0
        self.wait_s += waited
        if now > self._saved + SAVE_S:
            self.save()
        return waited

    def _count(self, batch: Any, samples: int) -> None:
        self.batches += 1
        self._handed_out += 1
        self.samples += samples
        self.nbytes += sample_nbytes(batch)


def flattened(summary: Mapping[str, Any], name: str = "loader") -> dict[str, float]:
    """Return the numbers of a summary by one name each, as loggers of scalars take them.

    >>> flattened({"steps": 2, "holes": {"OSError": 1}, "work_seconds": None})
    {'loader/steps': 2, 'loader/holes/OSError': 1}
    """
    numbers: dict[str, float] = {}
    for key, value in summary.items():
        if isinstance(value, Mapping):
            numbers |= flattened(value, f"{name}/{key}")
        elif value is not None:
            numbers[f"{name}/{key}"] = value
    return numbers


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


class TimedIterator(Iterator[Any]):
    """One of torch's iterators, with its time and samples counted."""

    def __init__(self, inner: Any, loader: Any, stats: LoopStats) -> None:
        self._inner, self._stats = inner, stats
        # Samples of a batch, and those that are left in the epoch where that is known.
        self._size, self._left, batches = loader.batch_size, None, loader.batch_sampler
        is_torchs = type(batches) is BatchSampler and hasattr(batches.sampler, "__len__")
        if is_torchs and hasattr(loader.dataset, "__len__"):
            self._size = batches.batch_size
            done = loader._plain.current.start.batches * self._size
            self._left = len(batches.sampler) - done
        self._has_batches = batches is not None

    def __next__(self) -> Any:
        self._stats.wait()
        try:
            batch = next(self._inner)
        except StopIteration:
            self._stats.end()
            raise
        self._stats.take_plain(batch, self._samples(batch))
        return batch

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        """Return what torch's iterator has."""
        return getattr(self._inner, name)

    def __getstate__(self) -> Any:
        """Refuse to be pickled, as torch's iterators do."""
        raise NotImplementedError("an iterator cannot be pickled: pickle the loader")

    def _samples(self, batch: Any) -> int:
        if (counted := self._inner.samples) is not None:
            return int(counted)
        if not self._has_batches:
            return 1
        if self._size is None:  # a sampler of the user's decides
            return count_rows(batch)
        if self._left is None:
            return int(self._size)
        count, self._left = min(self._size, max(0, self._left)), self._left - self._size
        return int(count)


def count_rows(batch: Any) -> int:
    """Return the rows of a batch's first tensor, 1 where it has none.

    >>> count_rows({"ids": torch.zeros(3, 5), "names": ["a", "b", "c"]})
    3
    """
    while isinstance(batch, Mapping | list | tuple) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
    return len(batch) if isinstance(batch, torch.Tensor) and batch.ndim else 1
