"""Forecasts what a plan does for the samples that were measured: the step, waiting, and memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.planner import make_planner
from ...balancer.planning.problem.config import PlanConfig, Window
from ...balancer.planning.problem.work import padded_loads, sample_times

# Samples that are planned for a forecast, and steps of them.
MOST_SAMPLES, MOST_STEPS = 4096, 8


@dataclass(frozen=True, slots=True)
class Outlook:
    """Planned steps, compared with random order's microbatches of batch_size samples.

    time: of a step, over random order's. waiting and waited: the share of their time that ranks
    wait, now and in random order. largest and largest_random: the largest microbatch, in units of
    `resource`. samples: how many were measured.
    """

    time: float
    waiting: float
    waited: float
    resource: str
    largest: int
    largest_random: int
    samples: int


def forecast(config: PlanConfig, costs: Int64, batch_size: int) -> Outlook | None:
    """Return the forecast from the costs (n, resources) of some samples; None without any work.

    Where a step has more samples than were measured, it is made of them again and again.
    """
    if config.oversize == "error":  # the run says so, when the sample's turn comes
        config = replace(config, oversize="refuse")
    planner, rows = make_planner(config), config.least_microbatches // config.ranks
    column = config.balanced_columns[0]
    now, before, tops = [], [], []
    for step, some in enumerate(_steps(costs, config.samples_per_step, config.seed)):
        window = Window(0, step, 0, some, last=True)
        random = np.arange(len(some)) // batch_size
        for batch in planner.plan(window).batches[:1]:
            group_of = np.full(len(some), -1)
            for number, one in enumerate(m for r in zip(*batch.ranks, strict=True) for m in r):
                group_of[list(one.ordinals)] = number
            now.append(_times(config, some, group_of, rows))
            before.append(_times(config, some, random, rows))
            loads = (_loads(config, some, each, rows)[:, column] for each in (group_of, random))
            tops.append([int(each.max()) for each in loads])
    if not before or not np.sum(before):
        return None
    once = config.waits == "step"
    time, waiting = _step_and_waiting(np.array(now), once)
    time_random, waited = _step_and_waiting(np.array(before), once)
    largest, largest_random = np.max(tops, axis=0).tolist()
    name = config.resources[column]
    ratio = time / time_random
    return Outlook(ratio, waiting, waited, name, largest, largest_random, len(costs))


def _steps(costs: Int64, size: int, seed: int) -> Iterator[Int64]:
    """Yield the costs of a few steps."""
    count = len(costs)
    if size > count:
        order = np.random.RandomState(seed & 0xFFFFFFFF).randint(0, count, MOST_STEPS * size)
    else:
        order = np.arange(count)
    steps = max(1, min(MOST_STEPS, MOST_SAMPLES // size, len(order) // size))
    for step in range(steps):
        yield np.ascontiguousarray(costs[order[step * size : (step + 1) * size]])


def _loads(config: PlanConfig, costs: Int64, group_of: Int64, rows: int) -> Int64:
    return padded_loads(costs, group_of, config.ranks * rows, config.padded_columns)


def _times(config: PlanConfig, costs: Int64, group_of: Int64, rows: int) -> Int64:
    """Return the times (rows, ranks) of a step's microbatches, in the planner's unit."""
    columns = config.balanced_columns
    times = sample_times(config.only(columns), np.ascontiguousarray(costs[:, columns]))
    parts = np.stack([times.padded, times.added], axis=1)
    loads = padded_loads(parts, group_of, config.ranks * rows, (0,))
    both: Int64 = loads.sum(axis=1).reshape(rows, config.ranks)
    return both


def _step_and_waiting(times: Int64, once: bool) -> tuple[float, float]:
    """Return the time of steps (steps, rows, ranks), and the share of it that ranks wait.

    once: whether ranks wait for each other once a step, not after every row.
    """
    whole = float((times.sum(axis=1).max(axis=1) if once else times.max(axis=2)).sum())
    return whole, 1 - float(times.sum()) / (whole * times.shape[2])
