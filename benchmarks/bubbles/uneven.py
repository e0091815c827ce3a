"""Compares plans for microbatches of different encoder cost: knowing the costs, or only their mean.

The costs are tiles per microbatch, four samples each: as a shuffle draws them (`drawn`), or as the
balancer groups the same samples into microbatches that are even in tokens and tiles (`balanced`).
Both plans are executed with the same true kernel times, in their planned orders.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.bubbles.replay import filled_kernels
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig, Window
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.sched.bubble_filling.choose import fill_plan, fitting
from counterpoise.sched.bubble_filling.encoder_plans import (
    EncoderPlan,
    Host,
    host_step,
    plan_problem,
)
from counterpoise.sched.bubble_filling.instance import FilledSchedule, Work
from counterpoise.sched.bubble_filling.presets import case_setup
from counterpoise.sched.bubble_filling.setup import FillSetup

from ..planning.costs import CostTable, read_costs

SAMPLES = 4
REPLICAS = 4


@dataclass(frozen=True, slots=True)
class Gain:
    """Mean step times over the language model's own, less 1, and the variation of the costs."""

    mean_plan: float
    knowing_plan: float
    variation: float

    def report(self) -> dict[str, float]:
        """Return JSON; `gain` is the step time of the mean plan over the knowing one's."""
        return {
            "mean_plan": self.mean_plan,
            "knowing_plan": self.knowing_plan,
            "gain": (1 + self.mean_plan) / (1 + self.knowing_plan),
            "cost_cv": self.variation,
        }


def uneven_report(costs: Path | None, name: str = "3072", steps: int = 2) -> dict[str, object]:
    """Return gains over steps of `REPLICAS` replicas; without a file, costs are synthetic."""
    setup = case_setup(name)
    host = host_step(setup)
    table = read_costs(costs, ("tiles", "tokens"), 20_000, 0)
    ways = {
        "drawn": _drawn(table, setup.microbatches, steps),
        "balanced": _balanced(table, setup.microbatches, steps),
    }
    report: dict[str, object] = {"setting": name, "costs": costs.name if costs else "synthetic"}
    for kernels in ("whole", "split"):
        report[kernels] = {
            way: _gain(setup, host, rows, kernels == "split").report() for way, rows in ways.items()
        }
    return report


def _drawn(table: CostTable, microbatches: int, steps: int) -> list[tuple[int, ...]]:
    """Return the tiles of each replica's microbatches in the epoch's order."""
    count = microbatches * SAMPLES * REPLICAS
    order = permutation(len(table.costs), 0, 0)
    rows = []
    for step in range(steps):
        tiles = table.column("tiles")[order[step * count : (step + 1) * count]]
        rows += [tuple(r) for r in tiles.reshape(REPLICAS, microbatches, SAMPLES).sum(2).tolist()]
    return rows


def _balanced(table: CostTable, microbatches: int, steps: int) -> list[tuple[int, ...]]:
    """Return the tiles of each replica's microbatches as the balancer groups the same steps."""
    count = microbatches * SAMPLES * REPLICAS
    order = permutation(len(table.costs), 0, 0)
    rows = []
    for step in range(steps):
        costs = table.costs[order[step * count : (step + 1) * count]]
        config = PlanConfig(
            ranks=REPLICAS,
            samples_per_step=count,
            accumulate=microbatches,
            resources=table.resources,
            budgets=tuple(int(total) for total in costs.sum(axis=0)),
        )
        planned = make_planner(config).plan(Window(0, step, 0, costs, False))
        tiles = costs[:, table.resources.index("tiles")]
        rows += [
            tuple(int(tiles[list(one.ordinals)].sum()) for one in rank)
            for rank in planned.batches[0].ranks
        ]
    return rows


def _gain(setup: FillSetup, host: Host, rows: list[tuple[int, ...]], cut: bool) -> Gain:
    mean = fmean(cost for row in rows for cost in row)
    splitting = fitting(setup)[0] if cut else None
    plan = EncoderPlan(2, setup.tensor)
    even = fill_plan(plan_problem(setup, plan, host, splitting=splitting))
    times = []
    for row in rows:
        permille = tuple(max(1, round(1000 * cost / mean)) for cost in row)
        problem = plan_problem(setup, plan, host, splitting=splitting, permille=permille)
        knowing = fill_plan(problem)
        true = replace(
            even.problem,
            forward=_scaled(even.problem.forward, permille),
            backward=_scaled(even.problem.backward, permille),
        )
        unaware = replace(even, problem=true)
        times.append((_run(host, even, unaware), _run(host, knowing, knowing)))
    alone = host.gaps.step_ns
    before, after = (fmean(column) / alone - 1 for column in zip(*times, strict=True))
    flat = np.array(rows, float)
    return Gain(before, after, float(flat.std() / flat.mean()))


def _scaled(work: Work, permille: tuple[int, ...]) -> Work:
    """Return the mean plan's pieces at each microbatch's true cost."""
    factor = np.array(permille, np.int64)[None, :, None]
    return replace(work, ns=np.maximum(1, -(-work.ns * factor // 1000)))


def _run(host: Host, planned: FilledSchedule, real: FilledSchedule) -> int:
    """Return the step time of a plan with the kernel times of another schedule."""
    return filled_kernels(host, planned).step_ns(filled_kernels(host, real).ns)
