"""`make bench NAME=step`: times one whole step, from a batch of samples to the slowest rank.

Stage 0 is the encoder, the others share the LLM; both take 1 per microbatch on average, backward
takes twice as long as forward, communication no time. Two figures say how good a step is: its time
over that of 1F1B with equal microbatches, which uneven ones can beat a little (small microbatches
fill and drain a pipeline sooner), and over a bound that nothing can beat (`bounds.py`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from rich.table import Table

from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.ordering.evaluator import PipelineEvaluator
from counterpoise.balancer.planning.ordering.ranks import rank_ordering
from counterpoise.balancer.planning.ordering.search import disttrain, find_order
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig, Window
from counterpoise.balancer.planning.problem.loads import group_loads
from counterpoise.balancer.planning.problem.metrics import TILE_TOKENS
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.tools.console.reporting import emit
from counterpoise.tools.inputs.programs import parse_amounts

from ..baselines.step_greedy import ascending
from .bounds import least_pipeline_time
from .costs import read_costs

NANOSECONDS = 1_000_000
FILL = 0.94  # share of full microbatches that a step's samples would make
ATTENTION = 24_576  # a sequence of n tokens takes n + n**2 / ATTENTION token equivalents

Orders = Callable[[PipelineEvaluator], Int64]


@dataclass(frozen=True, slots=True)
class StepCase:
    """One global batch: costs (n, 2) tiles and tokens, and the ranks and stages that run it."""

    costs: Int64
    ranks: int
    stages: int
    microbatches: int
    budgets: tuple[int, ...]
    seed: int

    def work(self, loads: Int64) -> Int64:
        """Return stage times (2, ...) in ns of loads (..., 3): tiles, tokens, squares; mean 1e6."""
        whole = _with_squares(self.costs).sum(axis=0)
        count = self.ranks * self.microbatches
        encoder = loads[..., 0] * NANOSECONDS * count // max(1, int(whole[0]))
        llm_whole = max(1, int(whole[1] * ATTENTION + whole[2]))
        llm = (loads[..., 1] * ATTENTION + loads[..., 2]) * (NANOSECONDS // 1000) * count
        return np.stack([encoder, llm // (llm_whole // 1000)])

    def bound(self) -> int:
        """Return a lower bound on the slowest rank's time, in nanoseconds, of any plan."""
        encoder, llm = self.work(_with_squares(self.costs))
        forward = np.stack([encoder] + [llm] * (self.stages - 1))
        return max(1, least_pipeline_time(forward, self.ranks))

    def equal(self) -> int:
        """Return the time, in nanoseconds, if all microbatches were equal."""
        return 3 * NANOSECONDS * (self.microbatches + self.stages - 1)

    def pipeline(self, loads: Int64) -> PipelineEvaluator:
        """Return the pipeline of one rank's microbatches of these loads (microbatches, 3)."""
        encoder, llm = self.work(loads)
        forward = np.stack([encoder] + [llm] * (self.stages - 1))
        return PipelineEvaluator.one_forward_one_backward(self.stages, forward)


@click.command(
    "step",
    epilog="Example: make bench NAME=step ARGS='--ranks 32 --stages 4 --microbatches 16 --json'",
)
@click.option("--costs", type=click.Path(path_type=Path), help="npz file: tiles and tokens.")
@click.option("--budget", "budgets", multiple=True, help="NAME=MOST of a microbatch; repeat.")
@click.option("--relax", default=1.0, show_default=True, help="Factor on the budgets when packing.")
@click.option("--ranks", default=32, show_default=True)
@click.option("--stages", default=4, show_default=True)
@click.option("--microbatches", default=16, show_default=True)
@click.option("--draws", default=4, show_default=True, help="Batches to average over.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    costs: Path | None, budgets: tuple[str, ...], relax: float, ranks: int, stages: int,
    microbatches: int, draws: int, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Pack, partition and order whole steps; compare the slowest rank with a lower bound."""
    limits = parse_amounts("--budget", budgets, least=1) or {"tiles": 9, "tokens": 4096}
    if tuple(limits) != ("tiles", "tokens"):
        raise ValueError(f"budgets are of {tuple(limits)}; give tiles and tokens, in this order")
    table = read_costs(costs, ("tiles", "tokens"), 100_000, seed)
    rates: dict[str, list[list[float]]] = {name: [] for name in STRATEGIES}
    hard = tuple(limits.values())
    relaxed = tuple(int(limit * relax + 1e-9) for limit in hard)
    for draw in range(draws):
        order = permutation(len(table.costs), seed, draw)
        some = _full_step(table.costs[order], hard, ranks * microbatches)
        step = StepCase(some, ranks, stages, microbatches, relaxed, seed + draw)
        for name, strategy in STRATEGIES.items():
            begin = time.process_time()
            pipelines = strategy(step)
            taken = (time.process_time() - begin) * 1000
            slowest = max(pipeline(order) for pipeline, order in pipelines)
            rates[name].append([slowest / step.equal(), slowest / step.bound(), taken])
    report: dict[str, object] = {
        "ranks": ranks, "stages": stages, "microbatches": microbatches,
        "samples_per_step": len(some), "budgets": dict(zip(limits, relaxed, strict=True)),
        "draws": draws, "strategies": {name: _figures(rows) for name, rows in rates.items()},
    }  # fmt: skip
    emit(report, as_json, _as_table(report))


def _figures(rows: list[list[float]]) -> dict[str, object]:
    """Return a strategy's figures from each draw's time over equal, over bound, and CPU ms."""
    equal, bound, taken = np.array(rows).T
    return {
        "over_equal": float(equal.mean()),
        "over_equal_range": [float(equal.min()), float(equal.max())],
        "over_bound": float(bound.mean()),
        "over_bound_range": [float(bound.min()), float(bound.max())],
        "milliseconds": float(taken.mean()),
    }


# For each rank its pipeline, and the order in which it runs its microbatches
Found = list[tuple[PipelineEvaluator, Int64]]


def _full_step(costs: Int64, budgets: tuple[int, ...], microbatches: int) -> Int64:
    """Return the first samples, as many as fill 94 % of the microbatches in some resource."""
    filled = np.max(np.cumsum(costs, axis=0) / np.array(budgets), axis=1)
    size = int(np.searchsorted(filled, FILL * microbatches, side="right"))
    if size == len(costs):
        raise ValueError(f"{microbatches} microbatches need more than the {size} samples there are")
    return costs[:size]


def _random(step: StepCase) -> Found:
    """Assign samples to ranks at random; cut each rank's into microbatches of equal counts."""
    rank_of = permutation(len(step.costs), step.seed, 0) % step.ranks
    return _cut_and_order(step, rank_of, lambda _: np.arange(step.microbatches))


def _disttrain(step: StepCase) -> Found:
    """Apply DistTrain: Algorithm 2 (ascending), equal counts, Algorithm 3 repaired."""
    return _cut_and_order(step, _ascending(step), disttrain)


def _disttrain_two_opt(step: StepCase) -> Found:
    """Apply DistTrain with 2-opt in place of Algorithm 3."""
    return _cut_and_order(step, _ascending(step), lambda pipeline: find_order("two_opt", pipeline))


def _balanced(step: StepCase) -> Found:
    """Apply the product: balanced grouping, default partition, 2-opt, work off the slowest rank.

    The LLM's time, which grows faster than tokens, is a resource of its own without a budget.
    """
    squared = _with_squares(step.costs)
    time_units = squared[:, 1] * ATTENTION + squared[:, 2]
    config = PlanConfig(
        ranks=step.ranks, samples_per_step=len(step.costs), accumulate=step.microbatches,
        resources=("tiles", "tokens", "llm_time"), budgets=(*step.budgets, None),
        ordering="two_opt", seed=step.seed,
    )  # fmt: skip

    def pipeline_of(loads: Int64) -> PipelineEvaluator:
        squares = loads[:, 2] - loads[:, 1] * ATTENTION
        return step.pipeline(np.column_stack([loads[:, :2], squares]))

    costs = np.column_stack([step.costs, time_units])
    planner = make_planner(config, rank_ordering("two_opt", pipeline_of))
    (batch,) = planner.plan(Window(epoch=0, step=0, start=0, costs=costs, last=True)).batches
    here = np.arange(step.microbatches, dtype=np.int64)
    found = []
    for rank in batch.ranks:
        loads = np.stack([squared[list(m.ordinals)].sum(axis=0) for m in rank])
        found.append((step.pipeline(loads), here))
    return found


STRATEGIES: dict[str, Callable[[StepCase], Found]] = {
    "random": _random,
    "disttrain": _disttrain,
    "disttrain_two_opt": _disttrain_two_opt,
    "balanced": _balanced,
}


def _with_squares(costs: Int64) -> Int64:
    return np.column_stack([costs, costs[:, 1] ** 2])


def _ascending(step: StepCase) -> Int64:
    squares = step.costs[:, 1] ** 2 // ATTENTION
    return ascending(TILE_TOKENS * step.costs[:, 0] + step.costs[:, 1] + squares, step.ranks)


def _cut_and_order(step: StepCase, rank_of: Int64, orders: Orders) -> Found:
    """Cut each rank's samples, as the shuffle has them, into chunks of equal counts."""
    squared = _with_squares(step.costs)
    found = []
    for rank in range(step.ranks):
        own = np.flatnonzero(rank_of == rank)
        chunk_of = np.arange(len(own)) * step.microbatches // max(1, len(own))
        pipeline = step.pipeline(group_loads(squared[own], chunk_of, step.microbatches))
        found.append((pipeline, orders(pipeline)))
    return found


def _as_table(report: dict[str, object]) -> Table:
    title = f"{report['ranks']} ranks, {report['stages']} stages x {report['microbatches']}"
    shown = Table(title=f"{title} microbatches")
    columns = ("strategy", "slowest rank over bound", "over equal microbatches", "range", "CPU ms")
    for column in columns:
        shown.add_column(column, justify="left" if column == "strategy" else "right")
    strategies = report["strategies"]
    if isinstance(strategies, dict):
        for name, one in strategies.items():
            low, high = one["over_equal_range"]
            shown.add_row(
                name, f"{one['over_bound']:.4f}", f"{one['over_equal']:.4f}",
                f"{low:.3f} to {high:.3f}", f"{one['milliseconds']:.0f}",
            )  # fmt: skip
    return shown
