"""Fit cost profiles to measured steps.

Passes of a kind and stage whose microbatches hold the same are reduced to their median time, so
that a pause of the machine counts once. Through these medians goes the cost function

    cost = fixed + sum over resources of slope x amount,   all terms 0 or more

with the least squares, each median weighted by its number of measurements. Non-negative least
squares (Lawson and Hanson, 1974) need an active-set search when there are many terms; there are few
here, so every subset of terms is solved directly and the best one without a negative term is taken.
Among equal ones the smallest wins: where all microbatches held the same, that is the fixed cost,
which is all that was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ..ir.kinds import kind
from ..ir.program import NO_MICROBATCH
from .cost_profile import CostFunction, CostProfile, Resources
from .measured import MeasuredStep, compute_slots

Floats = NDArray[np.float64]
_Samples = tuple[list[Resources], list[int]]
MOST_RESOURCES = 6
# A further term has to lessen the squared error by this share of the squared costs.
_WORTH = 1e-9


@dataclass(frozen=True, slots=True)
class Residual:
    """The distance of a cost function from what was measured.

    `samples`: the number of measurements. `mean`: of what was measured. `rms`, `worst`: error of
    the function, the root of the mean square and the largest, as shares of the mean.
    """

    samples: int
    mean: float
    rms: float
    worst: float


@dataclass(frozen=True, slots=True)
class FittedProfile:
    """A profile, and by kind the residual of each of its entries."""

    profile: CostProfile
    residuals: Mapping[str, tuple[Residual, ...]]


def fit_function(
    amounts: Sequence[Resources], costs: Sequence[int], *, resources: Sequence[str] | None = None
) -> tuple[CostFunction, Residual]:
    """Return the cost function (ns or bytes) of measurements, and its residual.

    `amounts[i]`: what the i-th microbatch held. `resources`: those that the cost may depend on, by
    default all that every microbatch has. Raises ValueError without measurements and for more than
    MOST_RESOURCES resources.

    >>> held = [{"tokens": 100}, {"tokens": 200}, {"tokens": 400}]
    >>> fit_function(held, [250, 450, 850])[0]
    CostFunction(fixed=50, per_thousand={'tokens': 2000}, points={})
    """
    if not costs:
        raise ValueError("there are no measurements to fit; give at least one")
    names = sorted(set.intersection(*map(set, amounts))) if resources is None else list(resources)
    if len(names) > MOST_RESOURCES:
        raise ValueError(
            f"the microbatches have {len(names)} resources ({', '.join(names)}); choose "
            f"{MOST_RESOURCES} at most, those that times depend on"
        )
    table, middle, weight = _medians(names, amounts, costs)
    columns = np.column_stack([np.ones(len(table)), table])
    fixed, *rates = _least_squares(columns, middle, weight).tolist()
    slopes = {name: round(1000 * rate) for name, rate in zip(names, rates, strict=True)}
    function = CostFunction(round(fixed), {name: slope for name, slope in slopes.items() if slope})
    return function, _residual(function, amounts, costs)


def _medians(
    names: Sequence[str], amounts: Sequence[Resources], costs: Sequence[int]
) -> tuple[Floats, Floats, Floats]:
    """Return distinct amounts (rows, resources), their median costs, and their numbers."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for resources, cost in zip(amounts, costs, strict=True):
        if missing := [name for name in names if name not in resources]:
            raise ValueError(
                f"a microbatch has no amount of {missing[0]!r}; choose other resources"
            )
        alike.setdefault(tuple(resources[name] for name in names), []).append(cost)
    table = np.array(list(alike), np.float64).reshape(len(alike), len(names))
    middle = np.array([median(group) for group in alike.values()], np.float64)
    return table, middle, np.array([len(group) for group in alike.values()], np.float64)


def _least_squares(columns: Floats, costs: Floats, weight: Floats) -> Floats:
    """Return non-negative coefficients with the least weighted squares, few rather than many."""
    root = np.sqrt(weight)
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    left, right = columns / scale * root[:, None], costs * root
    best, least = np.zeros(columns.shape[1]), float(right @ right)
    worth = _WORTH * least
    for size in range(1, columns.shape[1] + 1):
        for chosen in map(list, combinations(range(columns.shape[1]), size)):
            solution = np.linalg.lstsq(left[:, chosen], right, rcond=None)[0]
            off = right - left[:, chosen] @ solution
            if solution.min() >= 0 and float(off @ off) < least - worth:
                best, least = np.zeros(columns.shape[1]), float(off @ off)
                best[chosen] = solution
    return np.asarray(best / scale)


def _residual(
    function: CostFunction, amounts: Sequence[Resources], costs: Sequence[int]
) -> Residual:
    measured = np.array(costs, np.float64)
    off = np.array([function.evaluate(resources) for resources in amounts], np.float64) - measured
    mean = float(measured.mean())
    share = max(mean, 1.0)
    return Residual(
        samples=len(costs),
        mean=mean,
        rms=float(np.sqrt((off**2).mean())) / share,
        worst=float(np.abs(off).max()) / share,
    )


def fit_profile(
    steps: Sequence[MeasuredStep], *, resources: Sequence[str] | None = None
) -> FittedProfile:
    """Return the cost profile of measured steps, with an entry per stage, or rank, and kind.

    Steps must have the same placement and say what their microbatches held. Kinds that are done
    once a step cost their median. Collectives of the steps' lanes cost their median, too. Raises
    ValueError if there are no such steps, or a stage has no pass of a kind that others have.
    """
    if not steps:
        raise ValueError("there are no steps to fit; give at least one measured step")
    placement = _placement(steps)
    ranks = max(len(step.timeline.ranks) for step in steps)
    samples = _measurements(steps)
    passes: dict[str, tuple[CostFunction, ...]] = {}
    residuals: dict[str, tuple[Residual, ...]] = {}
    for name in sorted({name for name, _ in samples}):
        rows = ranks if kind(name).scope == "rank" else len(placement)
        # What is done once a step has no microbatch whose contents it could depend on.
        terms = () if kind(name).once else resources
        fits = [_fit(name, row, samples.get((name, row)), terms) for row in range(rows)]
        passes[name] = tuple(function for function, _ in fits)
        residuals[name] = tuple(residual for _, residual in fits)
    profile = CostProfile(placement, passes, ranks, collectives=_collectives(steps))
    return FittedProfile(profile, residuals)


def _measurements(steps: Sequence[MeasuredStep]) -> dict[tuple[str, int], _Samples]:
    """Return what was measured of each kind and stage: contents of microbatches, and times."""
    samples: dict[tuple[str, int], _Samples] = {}
    for step in steps:
        for _, slot in compute_slots(step.timeline):
            pass_ = slot.what
            held = {} if pass_.microbatch == NO_MICROBATCH else step.microbatches[pass_.microbatch]
            amounts, times = samples.setdefault((pass_.kind, pass_.stage), ([], []))
            amounts.append(held)
            times.append(slot.end_ns - slot.start_ns)
    return samples


def _fit(
    name: str, row: int, samples: _Samples | None, resources: Sequence[str] | None
) -> tuple[CostFunction, Residual]:
    """Return the cost of a kind's passes on a stage or rank."""
    if samples is not None:
        return fit_function(*samples, resources=resources)
    # Only kinds that are divided over the ranks, such as encoders, need not be on all of them.
    if kind(name).scope == "stage":
        raise ValueError(f"stage {row} has no {name} in these steps; measure whole steps")
    return CostFunction(), Residual(0, 0.0, 0.0, 0.0)


def _placement(steps: Sequence[MeasuredStep]) -> tuple[int, ...]:
    first = steps[0].timeline.placement
    for step in steps:
        name, placement = step.timeline.name or "a step", step.timeline.placement
        if placement != first:
            raise ValueError(
                f"{name} has its stages on ranks {placement}, the first step on {first}; fit each "
                "placement by itself"
            )
        if not step.microbatches:
            raise ValueError(
                f"{name} does not say what its microbatches held; add "
                '"microbatches": [{"tokens": 4096}, ...]'
            )
    return first


def _collectives(steps: Sequence[MeasuredStep]) -> dict[str, int]:
    """Return the median time of each barrier's collective."""
    durations: dict[str, list[int]] = {}
    for step in steps:
        for row in step.timeline.lanes.values():
            for slot in row:
                durations.setdefault(slot.what.kind, []).append(slot.end_ns - slot.start_ns)
    return {name: round(median(times)) for name, times in sorted(durations.items())}
