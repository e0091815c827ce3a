"""Repeats the forecast over settings: ranks and accumulate, and errors of the costs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ....balancer.planning.problem.options import Mode
from ...inputs.cost_tables import CostTable
from .forecast import dist_ratios
from .strategies import (
    MicroSteps,
    Plan,
    micro_steps,
    micro_steps_if_possible,
    waiting_interval,
    with_accumulate_of,
)

Json = dict[str, Any]
Progress = Callable[[str], object]
CELLS: tuple[tuple[str, Mode], ...] = (
    ("balanced", "exact"),
    ("balanced", "window"),
    ("isf", "epoch"),
    ("random", "exact"),
    ("length", "exact"),
)
GRID_RANKS = (8, 32, 128)
GRID_ACCUMULATE = (1, 4, 16)
ERRORS = (0.0, 0.05, 0.1, 0.2)
UNLIMITED = 2**62


def grid(table: CostTable, plan: Plan, progress: Progress) -> list[Json]:
    """Return waiting and DistRatio over ranks, accumulate, mode and strategy.

    A setting is left out if the table has too few samples for two of its steps. progress(text) is
    called for each setting.
    """
    cells = list[Json]()
    for ranks in sorted({*GRID_RANKS, plan.ranks}):
        for accumulate in sorted({*GRID_ACCUMULATE, plan.accumulate}):
            setting = replace(plan, ranks=ranks, accumulate=accumulate, samples=0)
            if 2 * setting.samples_per_step <= len(table.costs):
                progress(f"{ranks} ranks, accumulate {accumulate}")
                cells += _cells(table, setting)
    return cells


def sensitivity(table: CostTable, plan: Plan) -> list[Json]:
    """Return waiting and budget overruns if the plan is made from inexact costs.

    Each cost is multiplied by a factor drawn evenly from 1 - error to 1 + error for planning; the
    figures come from the true costs.
    """
    rng = np.random.default_rng(plan.seed)
    limits = np.array([UNLIMITED if budget is None else budget for budget in plan.budgets])
    report = []
    for error in ERRORS:
        factors = rng.uniform(1 - error, 1 + error, table.costs.shape)
        inexact = np.maximum(np.rint(table.costs * factors), 0).astype(np.int64)
        known = CostTable(table.resources, inexact, table.sources)
        found = micro_steps("balanced", table, plan, known=known)
        report.append(
            {
                "error": error,
                "waiting": found.waiting,
                "over_budget": float((found.loads > limits).any(axis=-1).mean()),
                "largest_over_budget": float((found.loads / limits.astype(float)).max()),
            }
        )
    return report


def _cells(table: CostTable, setting: Plan) -> list[Json]:
    """Return the cells of one setting, for each strategy and mode that can be planned."""
    cells, budgeted = list[Json](), setting
    for name, mode in CELLS:
        plan = replace(budgeted if mode != "exact" else setting, mode=mode)
        found = micro_steps_if_possible(name, table, plan)
        if found is None:
            continue
        # The first cell says how many microbatches the budgets make; other modes get as many.
        if (name, mode) == CELLS[0]:
            budgeted = with_accumulate_of(setting, found)
        cells.append(_cell(table, setting, name, mode, found))
    return cells


def _cell(table: CostTable, setting: Plan, name: str, mode: str, found: MicroSteps) -> Json:
    return {
        "ranks": setting.ranks,
        "accumulate": setting.accumulate,
        "mode": mode,
        "strategy": name,
        "waiting": found.waiting,
        "interval": waiting_interval(found),
        "dist_ratio": dist_ratios(table, found),
    }
