"""Checks a sampler's costs and options, and turns them into a plan configuration."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...balancer.planning.grouping.balanced import balanced
from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.balance import DEFAULTS, Balance, budgets_of
from ...balancer.planning.problem.config import PlanConfig
from ...balancer.planning.problem.costs import check_costs
from ...balancer.planning.problem.shapes import Sizing
from ...balancer.planning.problem.shuffle import permutation
from ...workers.sources.costs import checked_column

# A step holds this share of what its microbatches hold when some samples are packed for a trial;
# less where there are few microbatches, because then one more on every rank is dear.
_FILL, _FILL_LESS, _FILL_LEAST = 0.96, 0.9, 0.5
_PILOT = 4096


def check_sampled(balance: Balance, accumulate_from: int) -> None:
    """Raise ValueError for options that would have no effect in a sampler."""
    if balance.layout != DEFAULTS.layout:
        named = isinstance(balance.layout, str)
        collate = f"collate_{balance.layout}" if named else "partial(collate_samples, layout=...)"
        raise ValueError(
            f"layout is {balance.layout!r}, but a sampler makes no batches: leave it, and give "
            f"collate_fn={collate} to torch's DataLoader"
        )
    if balance.report:
        raise ValueError("report is True, but a sampler sees no batches: leave it")
    if accumulate_from != 1 and balance.accumulate != "auto":
        raise ValueError(
            f"accumulate_from is {accumulate_from}, but accumulate is {balance.accumulate}: "
            "use Balance(accumulate='auto')"
        )


def checked_columns(
    costs: Mapping[str, Sequence[int] | np.ndarray],
) -> tuple[Int64, tuple[str, ...]]:
    """Return costs as int64 (samples, resources), and the resources; ValueError for wrong ones."""
    if not costs:
        raise ValueError("costs are empty: give at least one resource, such as tokens")
    arrays = {name: np.asarray(values) for name, values in costs.items()}
    sizes = {len(array) for array in arrays.values()}
    if len(sizes) != 1 or any(array.ndim != 1 for array in arrays.values()):
        shapes = {name: array.shape for name, array in arrays.items()}
        raise ValueError(f"costs need one number per sample and resource, got {shapes}")
    columns = [checked_column(name, values) for name, values in costs.items()]
    return check_costs(np.stack(columns, axis=1), len(columns)), tuple(costs)


def for_one_rank(balance: Balance, batch_size: int | None) -> Balance:
    """Return a balance that one rank can have: where samples are counted its steps are smaller."""
    counts = balance.grouping == "fixed" and batch_size is not None
    return replace(balance, samples_per_step=None) if counts else balance


def configuration(
    balance: Balance,
    costs: Int64,
    resources: tuple[str, ...],
    batch_size: int | None,
    drop_last: bool,
    accumulate_from: int,
    empty_lists: bool,
    ranks: int,
) -> PlanConfig:
    """Return the configuration for some ranks; a step has its usual size if none is given."""
    rows = accumulate_from if balance.accumulate == "auto" else balance.accumulate
    size = balance.samples_per_step
    if size is None:
        if balance.resolved_work == "padded" and batch_size is None:
            raise ValueError("work is 'padded': give samples_per_step, the size of a step")
        multiples = balance.shapes.multiples.items()
        sizing = Sizing(multiples=tuple(
            (resources.index(name), each) for name, each in multiples if name in resources
        ))  # fmt: skip
        costs = sizing.rounded(costs)
        size = _usual_step(costs, budgets_of(balance, resources), ranks, rows, batch_size)
        size = size if empty_lists else max(size, ranks * rows)
    return PlanConfig.from_balance(
        balance,
        ranks=ranks,
        resources=resources,
        samples_per_step=size,
        batch_size=batch_size,
        drop_last=drop_last,
        accumulate_from=accumulate_from,
        empty_microbatches=empty_lists,
    )


def _usual_step(
    costs: Int64, budgets: tuple[int | None, ...], ranks: int, rows: int, batch_size: int | None
) -> int:
    """Samples that the microbatches of a step hold comfortably."""
    if batch_size is not None:
        return ranks * rows * batch_size
    if all(budget is None for budget in budgets):
        raise ValueError("give budgets, or samples_per_step: without both a step has no size")
    if not len(costs):
        return 1
    some = costs[permutation(len(costs), 0, 0)[:_PILOT]]
    full = len(some) / balanced(some, budgets, rounds=0).groups
    fill = max(_FILL_LEAST, _FILL - _FILL_LESS / (rows * math.sqrt(ranks * rows)))
    return max(1, int(fill * ranks * rows * full))
