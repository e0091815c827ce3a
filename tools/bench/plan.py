"""`counterpoise bench plan`: measures how even each grouping makes an epoch, and its CPU time."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import click
import numpy as np
from rich.table import Table

from ...balancer.planning.problem import metrics
from ...balancer.planning.problem.config import PlanConfig
from ...balancer.planning.problem.loads import budget_array, group_loads, least_groups, oversized
from ...balancer.planning.problem.options import GroupingName, Mode
from ...balancer.planning.problem.shuffle import permutation
from ..console.reporting import emit, progress_console
from ..inputs.cost_tables import CostTable, parse_budgets, read_costs, token_time
from ..inputs.epoch_plans import EpochPlan, from_planner
from .strategies import COUNT, isf_printed, published

STRATEGIES = (
    "random",
    "length",
    "device",
    "isf",
    "balanced",
    "transformers_rebalance",
    "megatron_dp_balanced",
)
# Exact steps hold this share of the samples that full microbatches would: room to meet budgets.
EXACT_FILL = 0.94
_REPEAT_SAMPLES = 600_000


@click.command(
    "plan",
    epilog="Example: counterpoise bench plan --costs costs.npz --budget tiles=9 "
    "--budget tokens=4096 --ranks 128 --accumulate 16 --json",
)
@click.option("--costs", type=click.Path(path_type=Path), help="npz file with an array a resource.")
@click.option("--budget", "budgets", multiple=True, help="NAME=MOST of a microbatch; repeat.")
@click.option("--ranks", default=32, show_default=True)
@click.option("--accumulate", default=16, show_default=True)
@click.option("--mode", type=click.Choice(["window", "exact", "epoch"]), default="window")
@click.option("--strategy", "chosen", multiple=True, type=click.Choice(STRATEGIES))
@click.option("--samples", default=100_000, show_default=True, help="Without --costs: how many.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    costs: Path | None, budgets: tuple[str, ...], ranks: int, accumulate: int, mode: Mode,
    chosen: tuple[str, ...], samples: int, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Compare ways of grouping samples into microbatches over one epoch."""
    limits = parse_budgets(budgets) or {"tiles": 9, "tokens": 4096}
    table = read_costs(costs, tuple(limits), samples, seed)
    config = _config(table, tuple(limits.values()), ranks, accumulate, mode, seed)
    report = compare(table, config, chosen or STRATEGIES)
    emit(report, as_json, _as_table(report))


def compare(table: CostTable, config: PlanConfig, names: tuple[str, ...]) -> dict[str, object]:
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
    for name in names:
        progress_console.print(f"planning with {name}")
        plan = plan_by(name, table, config, 0)
        strategies[name] = measure(table, config, plan) | {
            "repeat_pairs": _repeats(name, table, config)
        }
        if name == "isf" and config.mode == "epoch":
            flushed = plan_by(name, table, config, 0, flush=True)
            strategies["isf_flushed"] = measure(table, config, flushed)
        if name == "balanced":
            report |= _totals(table, config, plan)
    return report


def plan_by(
    name: str, table: CostTable, config: PlanConfig, epoch: int, flush: bool = False
) -> EpochPlan:
    """Plan one epoch by the strategy of that name."""
    rows = config.accumulate_from if config.accumulate == "auto" else config.accumulate
    if name == "isf" and config.mode == "epoch":
        return isf_printed(table, config.budgets, config.ranks, rows, config.seed, flush, epoch)
    if name in ("transformers_rebalance", "megatron_dp_balanced"):
        column = config.resources.index("tokens") if "tokens" in config.resources else 0
        budget = config.budgets[column] or 0
        return published(
            name, table, budget, config.ranks, rows, config.samples_per_step, config.seed, epoch
        )
    if name == "balanced":
        return from_planner(table, config, epoch)
    if name == "isf":
        return from_planner(table, replace(config, grouping="isf", partition="given"), epoch)
    unlimited = tuple(None for _ in config.budgets)
    counted = replace(
        config, grouping=cast(GroupingName, name), partition="given", budgets=unlimited,
        batch_size=COUNT, accumulate=rows, accumulate_from=1,
        samples_per_step=config.ranks * rows * COUNT,
    )  # fmt: skip
    return from_planner(table, counted, epoch)


def measure(table: CostTable, config: PlanConfig, plan: EpochPlan) -> dict[str, object]:
    """Return the figures of one planned epoch; ratios are over rows of whole steps."""
    group_of = np.full(len(table.costs), -1, dtype=np.int64)
    flat = [sample for group in plan.groups for sample in group]
    group_of[flat] = np.repeat(np.arange(len(plan.groups)), [len(group) for group in plan.groups])
    loads = group_loads(table.costs, group_of, len(plan.groups))
    rows = plan.rows[: plan.whole_rows] if plan.whole_rows else plan.rows
    side = loads[rows]
    encoder, llm = token_time(table, side)
    step_of_group = np.full(len(plan.groups), -1, dtype=np.int64)
    step_of_group[rows] = plan.step_of_row[: len(rows), None]
    step_of = np.where(group_of >= 0, step_of_group[group_of], -1)
    chi2, error = _chi2(table, step_of)
    lengths = table.costs[:, -1]
    limits = budget_array(config.budgets)
    return {
        "dist_ratio": {
            name: metrics.dist_ratio(side[..., k]) for k, name in enumerate(table.resources)
        },
        "efficiency": metrics.efficiency(encoder, llm),
        "pad_ratio": _pad_ratio(table, plan),
        "left_over": plan.left_over,
        "over_budget": int((loads > limits).any(axis=1).sum()),
        "groups": len(plan.groups),
        "whole_steps_groups": rows.size,
        "whole_steps_lower_bound": least_groups(table.costs[step_of >= 0], limits),
        "raised_steps": plan.raised_steps,
        "chi2": chi2,
        "chi2_error": error,
        "drift": metrics.drift(lengths, step_of),
        "rank_bias": {
            name: metrics.rank_bias(side[..., k]) for k, name in enumerate(table.resources)
        }
        | {"combined": metrics.rank_bias(encoder + llm)},
        "seconds": plan.seconds,
        "first_seconds": plan.first_seconds,
        "seconds_per_step": plan.seconds / max(1, int(plan.step_of_row.max(initial=-1)) + 1),
    }


def _totals(table: CostTable, config: PlanConfig, plan: EpochPlan) -> dict[str, object]:
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


def _pad_ratio(table: CostTable, plan: EpochPlan) -> float:
    lengths = table.costs[:, -1].tolist()
    return metrics.pad_ratio([[lengths[k] for k in group] for group in plan.groups[:50_000]])


def _chi2(table: CostTable, step_of: np.ndarray) -> tuple[float, float]:
    return metrics.chi_square(metrics.kinds(table.costs[:, -1], table.sources), step_of)


def _repeats(name: str, table: CostTable, config: PlanConfig) -> float:
    """Return the share of co-packed pairs repeated in the next epoch, on a prefix of the samples.

    A smaller set repeats more, so a prefix gives an upper bound.
    """
    some = CostTable(
        table.resources, table.costs[:_REPEAT_SAMPLES], table.sources[:_REPEAT_SAMPLES]
    )
    if config.samples_per_step > len(some.costs):
        some = table
    return metrics.repeat_pairs(*(plan_by(name, some, config, epoch).groups for epoch in (0, 1)))


def _config(
    table: CostTable, budgets: tuple[int, ...], ranks: int, accumulate: int, mode: Mode, seed: int
) -> PlanConfig:
    bound = least_groups(table.costs, budget_array(budgets))
    fill = EXACT_FILL if mode == "exact" else 0.97
    size = max(1, int(fill * ranks * accumulate * len(table.costs) / bound))
    return PlanConfig(
        ranks=ranks,
        samples_per_step=size,
        accumulate="auto" if mode == "exact" else accumulate,
        accumulate_from=accumulate if mode == "exact" else 1,
        resources=table.resources,
        budgets=budgets,
        mode=mode,
        seed=seed,
    )


def _as_table(report: dict[str, object]) -> Table:
    title = f"{report['samples']:,} samples, {report['mode']} mode"
    shown = Table(title=title, caption=f"plain shuffle: chi2 {report['shuffle_chi2']:.3f}")
    columns = (
        "strategy",
        "tiles",
        "tokens",
        "efficiency",
        "padding",
        "left over",
        "chi2",
        "repeat",
        "s",
    )
    for column in columns:
        shown.add_column(column, justify="left" if column == "strategy" else "right")
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
