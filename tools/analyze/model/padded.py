"""Forecasts a loop whose collate_fn pads: what each plan of padded work takes on the data."""

from typing import Any

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ....balancer.planning.planner import make_planner
from ....balancer.planning.problem.balance import Balance
from ....balancer.planning.problem.config import PlanConfig, Window
from ....balancer.planning.problem.options import Counts
from ....balancer.planning.problem.shuffle import permutation
from ....balancer.planning.problem.work import padded_loads
from ...inputs.cost_tables import CostTable
from .strategies import Plan, encoder_and_llm

MOST_STEPS = 40
LEAST_GAIN = 0.03


def padded_figures(table: CostTable, plan: Plan) -> dict[str, Any]:
    """Return the time of steps by each plan over that of random order, and the line to change.

    "random": the samples as they come; "equal" and "free": Balance(work="padded") with these
    counts. Time is count x longest and tiles, the most of any rank, after every microbatch.
    "change" is the line that gains most, "change_equal" that for loops that weigh microbatches
    alike; empty where no plan gains 3 %.
    """
    size, rows = plan.ranks * plan.accumulate * plan.batch_size, plan.accumulate
    order = permutation(len(table.costs), plan.seed, 0)
    steps = [order[k : k + size] for k in range(0, len(order) - size + 1, size)][:MOST_STEPS]
    found = {"random": 0, "equal": 0, "free": 0}
    for step, some in enumerate(steps):
        costs = np.ascontiguousarray(table.costs[some])
        found["random"] += _time(table, plan, costs, np.arange(size) // plan.batch_size)
        choices: tuple[Counts, ...] = ("equal", "free")
        for counts in choices:
            config = PlanConfig.from_balance(
                Balance(work="padded", counts=counts, accumulate=rows, seed=plan.seed),
                ranks=plan.ranks, resources=table.resources, samples_per_step=size,
            )  # fmt: skip
            window = Window(0, step, 0, costs, last=True)
            (batch,) = make_planner(config).plan(window).batches
            group_of = np.empty(size, dtype=np.int64)
            for number, one in enumerate(m for row in zip(*batch.ranks, strict=True) for m in row):
                group_of[list(one.ordinals)] = number
            found[counts] += _time(table, plan, costs, group_of)
    whole = found["random"] or 1
    times = {name: time / whole for name, time in found.items()}
    return {"steps": len(steps), "time": times, **_changes(times, plan)}


def _time(table: CostTable, plan: Plan, costs: Int64, group_of: Int64) -> int:
    """Return the time of a step whose groups are numbered row by row."""
    padded = tuple(k for k, name in enumerate(table.resources) if name != "tiles")
    loads = padded_loads(costs, group_of, plan.ranks * plan.accumulate, padded)
    encoder, llm = encoder_and_llm(table.resources, loads)
    tops = [part.reshape(plan.accumulate, plan.ranks).max(axis=1).sum() for part in (encoder, llm)]
    return int(tops[0]) * plan.tile_tokens + int(tops[1])


def _changes(times: dict[str, float], plan: Plan) -> dict[str, str]:
    """Return the argument that gains most, and that for a loop that weighs microbatches alike."""
    gains = {name: times[name] <= 1 - LEAST_GAIN for name in ("equal", "free")}
    equal = _line("equal", plan) if gains["equal"] else ""
    is_free_better = gains["free"] and times["free"] <= times["equal"] - LEAST_GAIN
    return {"change": _line("free", plan) if is_free_better else equal, "change_equal": equal}


def _line(counts: Counts, plan: Plan) -> str:
    """Return the argument to write in a loop; "auto" finds costs and work."""
    options = [f'counts="{counts}"'] if counts == "free" else []
    options += [f"accumulate={plan.accumulate}"] if plan.accumulate > 1 else []
    return f'balance=Balance("auto", {", ".join(options)})' if options else 'balance="auto"'
