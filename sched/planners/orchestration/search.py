"""Disaggregated model orchestration: the GPUs, TP, DP, PP and VPP of each module.

DistTrain (2025), Algorithm 1, tries all TP and DP sizes and solves what is left with real numbers
of GPUs, which are no whole stages. Here the loop runs over whole layouts and is exact for the
formula of units.py:

1. every backbone (TP, DP, PP) gets a bound: its own time, and what encoder and generator need
   at the least on the GPUs that are left; backbones are taken in the order of their bounds;
2. for each, the best pair of units before and behind it is found among those that no other unit
   beats in everything (GPUs, stage, warm-up, microbatches taken in, memory left);
3. when the next bound is no better than the last candidate wanted, nothing better can come.

The candidates are the best layouts of different backbones. Only integers are compared.

`capped` is the same search with so many GPUs for each module and no more: baselines.py uses it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ...ir.channels import Ints
from .units import OrchestrationProblem, Unit, iteration_ns

# Possible units of a module, a row each. `after`: the most microbatches that later modules may take
# in, for its memory to suffice.
Rows = Any  # np.recarray, whose columns are int64
_ROW = np.dtype([(n, np.int64) for n in ("tp", "dp", "pp", "gpus", "stage", "warm", "after")])
# No bound on what later modules take in: the activations of all microbatches fit.
_ANY = 2**40
_NEVER = np.iinfo(np.int64).max
_NONE: Rows = np.rec.fromrecords([(0, 0, 0, 0, 0, 0, _ANY)], dtype=_ROW)


@dataclass(frozen=True, slots=True)
class Allocation:
    """A unit for each module, in their order, and the iteration time by the formula."""

    units: tuple[Unit, ...]
    formula_ns: int

    @property
    def gpus(self) -> int:
        """The number of GPUs of all units."""
        return sum(unit.gpus for unit in self.units)


def orchestrate(job: OrchestrationProblem, keep: int = 1) -> tuple[Allocation, ...]:
    """Return the `keep` best layouts by the formula, one per backbone, best first.

    The first is optimal. Raises ValueError if no layout fits into the GPUs' memory.
    """
    if job.gpus < len(job.modules):
        raise ValueError(f"{len(job.modules)} modules need a GPU each, got {job.gpus} in all")
    layouts = _search(job, keep, (job.gpus,) * len(job.modules))
    if not layouts:
        gib = job.memory_bytes / 2**30
        raise ValueError(
            f"no layout on {job.gpus} GPUs of {gib:.0f} GiB holds the model; give more GPUs, more "
            "memory, or smaller activations (recompute)"
        )
    return tuple(layouts)


def capped(job: OrchestrationProblem, most: tuple[int, ...]) -> Allocation | None:
    """Return the best layout of at most `most` GPUs for each module; None if none fits."""
    return next(iter(_search(job, 1, most)), None)


def _search(job: OrchestrationProblem, keep: int, most: tuple[int, ...]) -> list[Allocation]:
    """Return the `keep` best layouts of at most `most` GPUs for each module."""
    best: list[Allocation] = []
    sides = cache(lambda replicas: _sides(job, replicas, most))
    for bound, row in _backbones(job, most):
        if len(best) == keep and bound >= best[-1].formula_ns:
            break
        layout = _complete(job, row, *sides(int(row.dp)))
        if layout is not None:
            best = sorted([*best, layout], key=lambda plan: (plan.formula_ns, plan.gpus))[:keep]
    return best


@cache
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors, smallest first.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def _ceil(amount: Ints | int, by: Ints | int) -> Ints:
    return np.asarray(-(-amount // by), np.int64)


def _backbones(job: OrchestrationProblem, most: tuple[int, ...]) -> Iterator[tuple[int, Any]]:
    """Yield bound and unit of every feasible backbone, best bound first."""
    sides = [module for at, module in enumerate(job.modules) if at != job.at]
    least = sum(min(m.work_ns(tp) * tp for tp in job.tensor_sizes(m)) for m in sides)
    rows, bounds = [], []
    for replicas in divisors(job.batch):
        if replicas > job.gpus:
            break
        mine = _options(job, job.at, replicas, (replicas,), most)
        mine = mine[job.gpus - mine.gpus >= len(sides)]
        # GPU time of the others for a microbatch, spread over all GPUs that are left.
        pace = least * replicas // np.maximum(job.gpus - mine.gpus, 1)
        steady = (job.batch // replicas - 1) * np.maximum(mine.stage, pace)
        rows.append(mine)
        bounds.append(mine.warm + steady)
    units, bound = np.concatenate(rows).view(np.recarray), np.concatenate(bounds)
    for at in np.argsort(bound, kind="stable").tolist():
        yield int(bound[at]), units[at]


def _sides(job: OrchestrationProblem, replicas: int, most: tuple[int, ...]) -> tuple[Rows, Rows]:
    """Return the units before and after a backbone of `replicas` that may be part of the best."""

    def side(at: int) -> Rows:
        if not 0 <= at < len(job.modules):
            return _NONE
        # Whole samples to a replica, or parts of one.
        parts = (replicas * k for k in divisors(job.modules[at].parts)[1:])
        return _undominated(_options(job, at, replicas, (*divisors(replicas), *parts), most))

    return side(job.at - 1), side(job.at + 1)


def _options(
    job: OrchestrationProblem, at: int, replicas: int, sizes: tuple[int, ...], most: tuple[int, ...]
) -> Rows:
    """Return every unit of a module that fits into memory and its GPUs."""
    module, tps = job.modules[at], job.tensor_sizes(job.modules[at])
    depths = _depths(module.layers)
    grid = np.array(np.meshgrid(tps, sizes, list(depths)), np.int64).reshape(3, -1)
    tp, dp, pp = grid[:, grid.prod(axis=0) <= most[at]]
    layers = np.array([depths[depth] for depth in pp.tolist()], np.int64)
    times = np.zeros(max(tps) + 1, np.int64)
    times[tps] = [module.work_ns(size) for size in tps]
    stage = _ceil(_ceil(times[tp] * replicas, dp) * layers, module.layers)
    transfer = _ceil(_ceil(module.output_bytes * replicas, dp) * 1000, job.link_mb_per_s)
    # The inverse of `memory_bytes`: ceil(a / b) <= memory is a <= memory * b.
    fixed = module.state_bytes + _ceil(module.optimizer_bytes, dp)
    sample = _ceil(module.activation_bytes * replicas, dp)
    room = job.memory_bytes * module.layers * tp // layers - fixed
    held = np.where(sample > 0, room // np.maximum(sample, 1), _ANY)
    after = np.where(held >= job.batch // replicas, _ANY, held - pp)
    columns = [tp, dp, pp, tp * dp * pp, stage, pp * (stage + 2 * transfer), after]
    options: Rows = np.rec.fromarrays(columns, dtype=_ROW)
    return options[(room >= 0) & (after >= 0)]


@cache
def _depths(layers: int) -> dict[int, int]:
    """Return the layers on the fullest rank by pp, only where more stages make it shorter."""
    sizes = {pp: -(-layers // pp) for pp in range(1, layers + 1)}
    return {pp: size for pp, size in sizes.items() if size != sizes.get(pp - 1)}


def _undominated(options: Rows) -> Rows:
    """Return the Pareto front: without units that another beats or equals in every respect."""
    columns = (options.gpus, options.stage, options.warm, options.pp, -options.after)
    order = np.lexsort(columns[::-1])
    # In this order only an earlier row can beat a later one.
    table = np.stack(columns)[:, order]
    chosen: list[int] = []
    front = np.zeros((len(columns), 0), np.int64)
    for at in range(table.shape[1]):
        if not (front <= table[:, at, None]).all(axis=0).any():
            chosen.append(at)
            front = table[:, chosen]
    return options[np.sort(order[chosen])]


def _complete(job: OrchestrationProblem, row: Any, first: Rows, last: Rows) -> Allocation | None:
    """Return the best layout with this backbone, or None if none fits."""
    # All pairs of the two sides at once: (units before, units after). In 1F1B a unit takes in a
    # microbatch for each of its stages, and what those behind it do.
    gpus = first.gpus[:, None] + last.gpus
    fits = (gpus <= job.gpus - row.gpus) & (last.pp <= row.after)
    fits &= first.after[:, None] >= row.pp + last.pp
    if not fits.any():
        return None
    slowest = np.maximum(np.maximum(first.stage[:, None], last.stage), row.stage)
    steady = (job.batch // row.dp - 1) * slowest
    total = np.where(fits, first.warm[:, None] + row.warm + last.warm + steady, _NEVER)
    at = int(np.where(total == total.min(), gpus, _ANY).argmin())
    chosen = first[at // len(last)], row, last[at % len(last)]
    units = tuple(Unit(int(unit.tp), int(unit.dp), int(unit.pp)) for unit in chosen if unit.tp)
    return Allocation(units, iteration_ns(job, units))
