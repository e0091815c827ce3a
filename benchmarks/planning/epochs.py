"""How even each grouping makes a whole epoch, and the CPU time that it takes."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations

import numpy as np
from rich.table import Table

from counterpoise.balancer.planning.forecast import plan_windows
from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.problem import metrics
from counterpoise.balancer.planning.problem.config import GlobalBatch, PlanConfig
from counterpoise.balancer.planning.problem.loads import (
    budget_array,
    common_unit,
    group_loads,
    least_groups,
    oversized,
)
from counterpoise.balancer.planning.problem.options import Mode
from counterpoise.balancer.planning.problem.shuffle import derive_seed, permutation
from counterpoise.tools.console.reporting import make_table, progress_console

from ..baselines.omnibal_groupings import device_group, length_group, random_group
from . import randomness
from .costs import CostTable


def dist_ratio(loads: Int64) -> float:
    """Return the mean share of waiting over rows (steps, ranks): 1 - mean / max of each row.

    OmniBal (2025), §4.1, equation 2; rows without any load count as even.

    >>> dist_ratio(np.array([[4, 2], [3, 3]]))
    0.125
    """
    if not len(loads):
        return 0.0
    top = loads.max(axis=1)
    return float(np.mean(1 - loads.mean(axis=1) / np.maximum(top, 1) - (top == 0)))


@dataclass(frozen=True, slots=True)
class TimedPlan:
    """Groups of sample numbers, and rows (m, ranks) of group numbers that run side by side.

    step_of_row (m,): the step of each row. whole_rows: rows before the epoch's padded last step.
    left_over: samples in no microbatch; raised_steps: those with more microbatches than usual.
    seconds, first_seconds: CPU time of planning, and until the first window was planned.
    """

    groups: list[list[int]]
    rows: Int64
    step_of_row: Int64
    whole_rows: int
    left_over: int = 0
    raised_steps: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0


def timed(table: CostTable, config: PlanConfig, epoch: int = 0) -> TimedPlan:
    """Plan an epoch with the product's planner, and take the time of it."""
    order = permutation(len(table.costs), config.seed, epoch)
    costs = table.costs[order]
    begin, first, batches = time.process_time(), 0.0, list[GlobalBatch]()
    for window in plan_windows(config, costs, epoch):
        batches += window
        first = first or time.process_time() - begin
    seconds = time.process_time() - begin
    numbers, groups, depths = order.tolist(), list[list[int]](), list[int]()
    for batch in batches:
        depths.append(len(batch.ranks[0]))
        side_by_side = chain.from_iterable(zip(*batch.ranks, strict=True))
        groups += [[numbers[ordinal] for ordinal in one.ordinals] for one in side_by_side]
    steps = np.repeat([batch.step for batch in batches], depths)
    rows = np.arange(len(groups), dtype=np.int64).reshape(-1, config.ranks)
    raised = sum(depth > steps_of(config) for depth in depths)
    return TimedPlan(
        groups, rows, steps, len(rows) - depths[-1],
        raised_steps=raised, seconds=seconds, first_seconds=first,
    )  # fmt: skip


# Plans an epoch of the costs, the number of which is the last argument.
EpochPlanner = Callable[[CostTable, PlanConfig, int], TimedPlan]
# Samples of a microbatch, where a strategy counts them.
SIZE = 4
# Exact steps hold this share of the samples that full microbatches would: room to meet budgets.
EXACT_FILL = 0.94
_REPEAT_SAMPLES = 600_000


def steps_of(config: PlanConfig) -> int:
    """Return the microbatches that a rank has in a step, where budgets do not decide."""
    return config.accumulate_from if config.accumulate == "auto" else config.accumulate


def _counted(
    group: Callable[[Int64, int, int, int], Int64], table: CostTable, config: PlanConfig, epoch: int
) -> TimedPlan:
    """Plan by a grouping that counts samples, as many steps of the shuffle at a time as we do."""
    ranks, depth = config.ranks, steps_of(config)
    step = ranks * depth * SIZE
    order = permutation(len(table.costs), config.seed, epoch)
    whole = len(order) // step * step
    window = {"exact": step, "epoch": whole}.get(config.mode, step * max(4, -(-4096 // step)))
    begin, first, numbers = time.process_time(), 0.0, list[Int64]()
    for start in range(0, whole, window or 1):
        some = order[start : min(start + window, whole)]
        sizes = common_unit(table.costs[some], 1).sum(axis=1)
        seed = derive_seed(config.seed, epoch, start)
        numbers.append(some[group(sizes, ranks, SIZE, seed)].reshape(-1, SIZE))
        first = first or time.process_time() - begin
    seconds = time.process_time() - begin
    groups = np.concatenate(numbers).tolist()
    rows = np.arange(len(groups), dtype=np.int64).reshape(-1, ranks)
    return TimedPlan(
        groups, rows, np.arange(len(rows)) // depth, len(rows), left_over=len(order) - whole,
        seconds=seconds, first_seconds=first,
    )  # fmt: skip


def _isf(table: CostTable, config: PlanConfig, epoch: int) -> TimedPlan:
    return timed(table, replace(config, grouping="isf", partition="given"), epoch)


STRATEGIES: dict[str, EpochPlanner] = {
    "random": partial(_counted, random_group), "length": partial(_counted, length_group),
    "device": partial(_counted, device_group), "isf": _isf, "balanced": timed,
}  # fmt: skip


def pad_ratio(lengths: Sequence[Sequence[int]]) -> float:
    """Return the mean share of padding over microbatches, each padded to its longest sample.

    OmniBal (2025), §4.1, equation 1.

    >>> pad_ratio([[4, 2], [3, 3]])
    0.125
    """
    shares = [
        1 - sum(batch) / (max(batch) * len(batch)) for batch in lengths if max(batch, default=0)
    ]
    return float(np.mean(shares)) if shares else 0.0


def repeat_pairs(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> float:
    """Return the share of pairs that share a microbatch in one epoch and in the next.

    >>> repeat_pairs([[0, 1], [2, 3]], [[0, 1], [2], [3]])
    0.5
    """
    before, after = _pairs(first), _pairs(second)
    if not len(before):
        return 0.0
    return len(np.intersect1d(before, after, assume_unique=True)) / len(before)


def _pairs(groups: Sequence[Sequence[int]]) -> Int64:
    """Return a number for every pair of members of one group."""
    both = [pair for group in groups for pair in combinations(sorted(group), 2)]
    if not both:
        return np.empty(0, dtype=np.int64)
    pairs = np.array(both, dtype=np.int64)
    return pairs[:, 0] * 2**31 + pairs[:, 1]


def compare(
    table: CostTable, config: PlanConfig, planners: Mapping[str, EpochPlanner]
) -> dict[str, object]:
    """Return the whole report."""
    limits = budget_array(config.budgets)
    strategies: dict[str, object] = {}
    report: dict[str, object] = {
        "samples": len(table.costs),
        "oversize": int(oversized(table.costs, limits).sum()),
        "groups_lower_bound": least_groups(table.costs, limits),
        "samples_per_step": config.samples_per_step,
        "mode": config.mode,
        "strategies": strategies,
    }
    order = permutation(len(table.costs), config.seed, 0)
    step_of = np.empty(len(order), dtype=np.int64)
    step_of[order] = np.arange(len(order)) // config.samples_per_step
    report["shuffle_chi2"], report["shuffle_chi2_error"] = _chi2(table, step_of)
    for name, planner in planners.items():
        progress_console.print(f"planning with {name}")
        plan = planner(table, config, 0)
        strategies[name] = measure(table, config, plan) | {
            "repeat_pairs": _repeats(planner, table, config)
        }
        if name == "balanced":
            report |= _totals(table, config, plan)
    return report


def measure(table: CostTable, config: PlanConfig, plan: TimedPlan) -> dict[str, object]:
    """Return the figures of one planned epoch; ratios are over rows of whole steps."""
    group_of = np.full(len(table.costs), -1, dtype=np.int64)
    flat = [sample for group in plan.groups for sample in group]
    group_of[flat] = np.repeat(np.arange(len(plan.groups)), [len(group) for group in plan.groups])
    loads = group_loads(table.costs, group_of, len(plan.groups))
    rows = plan.rows[: plan.whole_rows] if plan.whole_rows else plan.rows
    side = loads[rows]
    none = np.zeros(side.shape[:-1], np.int64)
    by_name = dict(zip(table.resources, np.moveaxis(side, -1, 0), strict=True))
    encoder = by_name.pop("tiles", none) * metrics.TILE_TOKENS
    llm = by_name.get("tokens", next(iter(by_name.values()), none))
    step_of_group = np.full(len(plan.groups), -1, dtype=np.int64)
    step_of_group[rows] = plan.step_of_row[: len(rows), None]
    step_of = np.where(group_of >= 0, step_of_group[group_of], -1)
    chi2, error = _chi2(table, step_of)
    lengths = table.costs[:, -1]
    padded = [lengths[group].tolist() for group in plan.groups[:50_000]]
    limits = budget_array(config.budgets)
    return {
        "dist_ratio": {name: dist_ratio(side[..., k]) for k, name in enumerate(table.resources)},
        "efficiency": metrics.efficiency(encoder, llm),
        "pad_ratio": pad_ratio(padded),
        "left_over": plan.left_over,
        "over_budget": int((loads > limits).any(axis=1).sum()),
        "groups": len(plan.groups),
        "whole_steps_groups": rows.size,
        "whole_steps_lower_bound": least_groups(table.costs[step_of >= 0], limits),
        "raised_steps": plan.raised_steps,
        "chi2": chi2,
        "chi2_error": error,
        "drift": randomness.drift(lengths, step_of),
        "rank_bias": {
            name: randomness.rank_bias(side[..., k]) for k, name in enumerate(table.resources)
        }
        | {"combined": randomness.rank_bias(encoder + llm)},
        "seconds": plan.seconds,
        "first_seconds": plan.first_seconds,
        "seconds_per_step": plan.seconds / max(1, int(plan.step_of_row.max(initial=-1)) + 1),
    }


def _totals(table: CostTable, config: PlanConfig, plan: TimedPlan) -> dict[str, object]:
    """Return the groups of whole steps and their lower bound; the padded last step is apart."""
    rows = plan.rows[: plan.whole_rows] if plan.whole_rows else plan.rows
    inside = [sample for number in rows.ravel().tolist() for sample in plan.groups[number]]
    return {
        "planned": sum(len(group) for group in plan.groups),
        "groups": rows.size,
        "groups_lower_bound": least_groups(table.costs[inside], budget_array(config.budgets)),
        "padded_step_groups": len(plan.groups) - rows.size,
        "padded_step_samples": sum(len(group) for group in plan.groups) - len(inside),
        "seconds": plan.seconds,
    }


def _chi2(table: CostTable, step_of: np.ndarray) -> tuple[float, float]:
    return randomness.chi_square(randomness.kinds(table.costs[:, -1], table.sources), step_of)


def _repeats(planner: EpochPlanner, table: CostTable, config: PlanConfig) -> float:
    """Return the share of co-packed pairs repeated in the next epoch, on a prefix of the samples.

    A smaller set repeats more, so a prefix gives an upper bound.
    """
    some = CostTable(
        table.resources, table.costs[:_REPEAT_SAMPLES], table.sources[:_REPEAT_SAMPLES]
    )
    if config.samples_per_step > len(some.costs):
        some = table
    return repeat_pairs(*(planner(some, config, epoch).groups for epoch in (0, 1)))


def make_config(
    table: CostTable, budgets: tuple[int, ...], ranks: int, accumulate: int, mode: Mode, seed: int
) -> PlanConfig:
    """Return steps of as many samples as nearly full microbatches hold."""
    bound = least_groups(table.costs, budget_array(budgets))
    fill = EXACT_FILL if mode == "exact" else 0.97
    size = max(1, int(fill * ranks * accumulate * len(table.costs) / bound))
    return PlanConfig(
        ranks=ranks, samples_per_step=size, accumulate="auto" if mode == "exact" else accumulate,
        accumulate_from=accumulate if mode == "exact" else 1, resources=table.resources,
        budgets=budgets, mode=mode, seed=seed,
    )  # fmt: skip


def as_table(report: dict[str, object]) -> Table:
    """Return the strategies' figures as a table."""
    title = f"{report['samples']:,} samples, {report['mode']} mode"
    columns = ("tiles", "tokens", "efficiency", "padding", "left over", "chi2", "repeat", "s")
    shown = make_table(title, "strategy", *columns)
    shown.caption = f"plain shuffle: chi2 {report['shuffle_chi2']:.3f}"
    strategies = report["strategies"]
    if isinstance(strategies, dict):
        for name, one in strategies.items():
            ratios = [f"{value:.4f}" for value in one["dist_ratio"].values()]
            shown.add_row(
                name, *[*ratios, ""][:2], f"{one['efficiency']:.4f}", f"{one['pad_ratio']:.3f}",
                str(one["left_over"]), f"{one['chi2']:.3f}",
                f"{one.get('repeat_pairs', 0.0):.1e}", f"{one['seconds']:.2f}",
            )  # fmt: skip
    return shown
