"""`make bench NAME=published`: whole epochs of published samplers' plans beside ours.

`isf` in mode epoch is OmniBal's algorithm as printed; `isf_flushed` keeps what the printed one
leaves over.
"""

import time
from functools import partial
from pathlib import Path

import click
import numpy as np

from counterpoise.balancer.planning.grouping.groups import members
from counterpoise.balancer.planning.grouping.isf import isf
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.planning.problem.options import Mode
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.tools.console.reporting import emit
from counterpoise.tools.inputs.programs import parse_amounts

from ..baselines.published_samplers import megatron_dp_balanced, transformers_rebalance
from . import epochs
from .costs import CostTable, read_costs


def isf_printed(flush: bool, table: CostTable, config: PlanConfig, epoch: int) -> epochs.TimedPlan:
    """Group the epoch by ISF as printed; assign groups to ranks in random order."""
    begin, seed = time.process_time(), config.seed + epoch
    found = isf(table.costs, config.budgets, seed=seed, flush=flush)
    seconds = time.process_time() - begin
    groups = members(found.group_of, found.groups)
    whole = len(groups) // config.ranks * config.ranks
    rows = permutation(len(groups), seed + 1, 0)[:whole].reshape(-1, config.ranks)
    step_of_row = np.arange(len(rows), dtype=np.int64) // epochs.steps_of(config)
    left = len(found.left_over) + len(found.oversize)
    return epochs.TimedPlan(groups, rows, step_of_row, len(rows), left, seconds=seconds)


def published(name: str, table: CostTable, config: PlanConfig, epoch: int) -> epochs.TimedPlan:
    """Plan every global batch of the reference shuffle by a published sampler's rule."""
    ranks, size = config.ranks, config.samples_per_step
    column = config.resources.index("tokens") if "tokens" in config.resources else 0
    budget = config.budgets[column] or 0
    order = permutation(len(table.costs), config.seed, epoch)
    tokens = table.column("tokens")[order]
    numbers = order.tolist()
    groups, steps, made = list[list[int]](), list[int](), 0
    begin = time.process_time()
    for step, start in enumerate(range(0, len(order) - size + 1, size)):
        some = tokens[start : start + size]
        if name == "megatron_dp_balanced":
            found = megatron_dp_balanced(some, ranks, budget)
        else:
            found = transformers_rebalance(some, ranks, epochs.steps_of(config))
        groups += [[numbers[start + k] for k in group] for group in found]
        steps += [step] * (len(found) // ranks)
        made += len(found)
    seconds = time.process_time() - begin
    rows = np.arange(made, dtype=np.int64).reshape(-1, ranks)
    return epochs.TimedPlan(
        groups, rows, np.array(steps), len(rows), len(order) % size, seconds=seconds
    )


PUBLISHED: dict[str, epochs.EpochPlanner] = {
    "transformers_rebalance": partial(published, "transformers_rebalance"),
    "megatron_dp_balanced": partial(published, "megatron_dp_balanced"),
}
AS_PRINTED: dict[str, epochs.EpochPlanner] = {
    "isf": partial(isf_printed, False),
    "isf_flushed": partial(isf_printed, True),
}
NAMES = (*epochs.STRATEGIES, *PUBLISHED)


@click.command("published")
@click.option("--costs", type=click.Path(path_type=Path), help="npz file with an array a resource.")
@click.option("--budget", "budgets", multiple=True, help="NAME=MOST of a microbatch; repeat.")
@click.option("--ranks", default=32, show_default=True)
@click.option("--accumulate", default=16, show_default=True)
@click.option("--mode", type=click.Choice(["window", "exact", "epoch"]), default="window")
@click.option("--strategy", "chosen", multiple=True, type=click.Choice(NAMES))
@click.option("--samples", default=100_000, show_default=True, help="Without --costs: how many.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    costs: Path | None, budgets: tuple[str, ...], ranks: int, accumulate: int, mode: Mode,
    chosen: tuple[str, ...], samples: int, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Compare ways of grouping samples into microbatches over one epoch, published ones too.

    Example: make bench NAME=published ARGS="--ranks 128 --accumulate 16 --json"
    """
    limits = parse_amounts("--budget", budgets, least=1) or {"tiles": 9, "tokens": 4096}
    table = read_costs(costs, tuple(limits), samples, seed)
    config = epochs.make_config(table, tuple(limits.values()), ranks, accumulate, mode, seed)
    planners = {**epochs.STRATEGIES, **PUBLISHED}
    planners = {name: planners[name] for name in chosen or NAMES}
    if "isf" in planners and mode == "epoch":
        planners |= AS_PRINTED
    report = epochs.compare(table, config, planners)
    emit(report, as_json, epochs.as_table(report))
