"""Forecasts how long ranks wait for each other: the one model of auto, try, analyze and reports.

Counted from what samples cost, not timed. Ranks wait for the slowest in the encoder and in the
language model of every microbatch, or once a step where Balance(waits="step") says so. A padded
microbatch takes count x the largest of its samples. Random order has the same samples as they come,
as many in each microbatch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .kernels.arrays import Int64
from .planner import make_planner
from .problem.config import GlobalBatch, PlanConfig, Window
from .problem.options import ENCODER
from .problem.work import padded_loads, resource_times

# Samples that are planned for a forecast, and steps of them, by default.
MOST_SAMPLES, MOST_STEPS = 4096, 8
# Steps of samples that are drawn again and again.
DRAWN_STEPS = 64


class StepWork(NamedTuple):
    """A step's time until its slowest ranks are done, and what each rank (ranks,) works; one unit.

    imbalance: of each resource's costs, the most of a rank over the mean, where it was counted.

    >>> StepWork(4.0, np.array([4.0, 2.0])).work
    3.0
    """

    time: float
    by_rank: npt.NDArray[np.float64]
    imbalance: tuple[float, ...] = ()

    @property
    def work(self) -> float:
        """Return what a rank works on average."""
        return float(self.by_rank.mean())


class SampleWork(NamedTuple):
    """What samples (n,) take, in one unit.

    encoder, llm: where it adds up. padded: in a language model whose microbatches take count x the
    largest. spread: of images that travel, which all ranks encode alike.
    """

    encoder: Int64
    llm: Int64
    padded: Int64
    spread: Int64

    def take(self, chosen: npt.NDArray[np.intp]) -> "SampleWork":
        """Return the work of some samples, in that order."""
        return SampleWork(*(part[chosen] for part in self))

    def sum_step(self, cell_of: Int64, cells: int, ranks: int, waits: str) -> StepWork:
        """Return a step's work, of which sample k is in microbatch cell_of[k].

        cells: how many there are; those of all ranks that run side by side have numbers in a row.
        """
        encoder = np.bincount(cell_of, self.encoder, cells)
        llm = np.bincount(cell_of, self.llm, cells).astype(np.float64)
        if self.padded.any():
            largest = np.zeros(cells)
            np.maximum.at(largest, cell_of, self.padded)
            llm = llm + np.bincount(cell_of, minlength=cells) * largest
        parts = np.stack([encoder, llm]).reshape(2, -1, ranks)
        by_rank = parts.sum(axis=(0, 1))
        slowest = by_rank.max() if waits == "step" else parts.max(axis=2).sum()
        spread = self.spread.sum() / ranks
        return StepWork(float(slowest + spread), by_rank + spread)


@lru_cache(maxsize=8)
def _work_columns(config: PlanConfig) -> tuple[PlanConfig, list[int], tuple[list[int], ...]]:
    """Return the configuration of what is work, its columns in the whole, and those by kind."""
    travels = [k for k, name in enumerate(config.resources) if name in config.dispatched]
    columns = sorted({*config.balanced_columns, *travels})
    only = config.only(tuple(columns))
    encoder, llm, padded, spread = list[int](), list[int](), list[int](), list[int]()
    for number, name in enumerate(only.resources):
        if name in config.dispatched:
            spread.append(number)
        elif name in only.padded:
            padded.append(number)
        elif name in ENCODER:
            encoder.append(number)
        else:
            llm.append(number)
    return only, columns, (encoder, llm, padded, spread)


def sample_work(config: PlanConfig, costs: Int64) -> SampleWork:
    """Return what samples of costs (n, resources) take, in the planner's unit.

    >>> config = PlanConfig(2, 8, 1, ("tiles", "tokens"), (None, None))
    >>> [part.tolist() for part in sample_work(config, np.array([[2, 9]]))]
    [[614], [9], [0], [0]]
    """
    only, columns, kinds = _work_columns(config)
    sized = config.sizing.rounded(costs)
    times = resource_times(only, np.ascontiguousarray(sized[:, columns]))
    return SampleWork(*(times[:, numbers].sum(axis=1) for numbers in kinds))


def list_cells(batch: GlobalBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Return the ordinals of a step's samples, the microbatch of each, and how many there are."""
    # The k-th microbatches of all ranks are side by side.
    cells = [microbatch.ordinals for row in zip(*batch.ranks, strict=True) for microbatch in row]
    sizes = [len(ordinals) for ordinals in cells]
    ordinals = np.fromiter(chain.from_iterable(cells), np.int64, sum(sizes))
    return ordinals, np.repeat(np.arange(len(cells)), sizes), len(cells)


def plan_windows(
    config: PlanConfig, costs: Int64, epoch: int = 0
) -> Iterator[Sequence[GlobalBatch]]:
    """Yield the global batches of each window of an epoch of costs (n, resources), in order."""
    planner = make_planner(config)
    start = batches = 0
    while start < len(costs):
        window = costs[start : start + planner.window_samples]
        last = start + len(window) >= len(costs)
        planned = planner.plan(Window(epoch, batches, start, window, last))
        yield planned.batches
        batches += len(planned.batches)
        start += planned.consumed


@dataclass(frozen=True, slots=True)
class Outlook:
    """Planned steps, compared with microbatches of batch_size samples in random order.

    time: of a sample, over random order's. waiting and waited: the share of their time that ranks
    wait, planned and in random order. largest, largest_random: the most that a microbatch holds,
    by resource. samples: how many were measured. padding, padding_random: the share of the work
    that is padding, up to multiples too.
    """

    time: float
    waiting: float
    waited: float
    largest: dict[str, int]
    largest_random: dict[str, int]
    samples: int
    padding: float = 0.0
    padding_random: float = 0.0


class _Sums:
    """What steps of a configuration take together, of samples that cost `costs` (n, resources).

    alone: the same where batches round no sample up, as those do not that are not padded.
    """

    def __init__(self, config: PlanConfig, costs: Int64, alone: Int64) -> None:
        self.config = config
        self.costs = costs if config.padded else alone
        self.samples, self.time, self.work, self.filled = 0, 0.0, 0.0, 0
        self._by_sample = sample_work(config, self.costs)
        alone_work = self._by_sample if alone is self.costs else sample_work(config, alone)
        self._unpadded = sum(alone_work, np.zeros(len(costs), np.int64))
        self._largest = np.zeros(len(config.resources), np.int64)

    def add(self, chosen: npt.NDArray[np.intp], cell_of: Int64, cells: int) -> None:
        """Add a step: its samples, and the microbatch of each."""
        config = self.config
        work = self._by_sample.take(chosen)
        step = work.sum_step(cell_of, cells, config.ranks, config.waits)
        self.samples += len(chosen)
        self.time += step.time
        self.work += step.work
        self.filled += int(self._unpadded[chosen].sum())
        rounded = config.sizing.rounded(self.costs[chosen])
        loads = padded_loads(rounded, cell_of, cells, config.padded_columns)
        np.maximum(self._largest, loads.max(axis=0), out=self._largest)

    @property
    def waiting(self) -> float:
        return 1 - self.work / self.time

    @property
    def padding(self) -> float:
        return 1 - self.filled / (self.work * self.config.ranks)

    @property
    def largest(self) -> dict[str, int]:
        columns = self.config.balanced_columns
        return {self.config.resources[k]: int(self._largest[k]) for k in columns}


def forecast(
    config: PlanConfig, costs: Int64, batch_size: int, *, now: PlanConfig | None = None,
    alone: Int64 | None = None, most_samples: int = MOST_SAMPLES, most_steps: int = MOST_STEPS,
) -> Outlook | None:  # fmt: skip
    """Return the forecast of a plan from the costs (n, resources) of some samples in their order.

    None where they are no work. Where a step has more samples than were measured, it is made of
    them again and again. Raises ValueError where the plan cannot meet its budgets.

    Args:
        config: the plan.
        costs: as batches have them, where these round each sample up to a multiple.
        batch_size: of the loop as it is.
        now: the loop as it is, where its batches are made otherwise.
        alone: what samples cost where none is rounded up; default: costs.
        most_samples, most_steps: that are planned.
    """
    if config.oversize == "error":  # the run says so, when the sample's turn comes
        config = replace(config, oversize="refuse")
    size = config.samples_per_step
    drawn = _draw_steps(len(costs), size, config.seed, most_samples, most_steps)
    batched = costs[drawn]
    steps = batched, batched if alone is None else alone[drawn]
    planned, random = _Sums(config, *steps), _Sums(now or config, *steps)
    batches = list(chain.from_iterable(plan_windows(config, planned.costs)))
    # A window leaves a last step that is shorter than others.
    for batch in batches[:-1] if config.mode != "exact" and len(batches) > 1 else batches:
        planned.add(*list_cells(batch))
    rows = -(-size // (batch_size * config.ranks))
    for start in range(0, len(drawn), size):
        cell_of = np.arange(size) // batch_size
        random.add(np.arange(start, start + size), cell_of, rows * config.ranks)
    if not random.time or not planned.time:
        return None
    return Outlook(
        planned.time / planned.samples * random.samples / random.time, planned.waiting,
        random.waiting, planned.largest, random.largest, len(costs), planned.padding,
        random.padding,
    )  # fmt: skip


def _draw_steps(
    count: int, size: int, seed: int, most_samples: int, most_steps: int
) -> npt.NDArray[np.intp]:
    """Return the samples of a few steps: drawn, where one step has more than there are."""
    steps = max(1, min(most_steps, most_samples // size, count // size or DRAWN_STEPS))
    if size <= count:
        return np.arange(steps * size)
    return np.random.RandomState(seed & 0xFFFFFFFF).randint(0, count, steps * size)
