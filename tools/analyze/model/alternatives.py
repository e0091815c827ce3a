"""Forecasts other values of Balance: images that travel, all_or_none, padded work, shapes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ....balancer.planning.partition.all_or_none import mixed_rows
from ....balancer.planning.planner import make_planner
from ....balancer.planning.problem.balance import Balance
from ....balancer.planning.problem.config import PlanConfig, Window
from ....balancer.planning.problem.options import ENCODER, LLM, NO_WORK, Counts
from ....balancer.planning.problem.shapes import Sizing, resolve_shapes
from ....balancer.planning.problem.shuffle import permutation
from ....balancer.planning.problem.work import padded_loads
from ...inputs.cost_tables import CostTable, encoder_and_llm
from .forecast import Forecast
from .strategies import MicroSteps, Plan, micro_steps


def dispatch_figures(forecast: Forecast) -> dict[str, Any] | None:
    """Return the waiting of encoder and language model, by whole samples and by images.

    Images of a step are spread over ranks before its microbatches run, a tile at a time, so in a
    step no rank encodes more than the mean, rounded up. The language model's microbatches are
    planned by its own work. What moving the images takes is not in the model.

    Of each {"encoder": share, "llm": share, "waiting": share of both, "time": of a sample, relative
    to whole samples}. None where samples do not cost both.
    """
    whole, others = forecast.steps["balanced"], {*forecast.table.resources} - {*ENCODER, *NO_WORK}
    if not whole.encoder.any() or not whole.llm.any() or not others:
        return None
    table, plan = forecast.table, forecast.plan
    alone = micro_steps("balanced", table, replace(plan, dispatch="images"))
    samples = _dispatched(whole, whole.encoder.max(axis=1))
    images = _dispatched(alone, _spread(alone, plan.tile_tokens))
    base = samples["time"] or 1.0
    return {
        name: {**found, "time": found["time"] / base}
        for name, found in (("samples", samples), ("images", images))
    }


def _spread(found: MicroSteps, unit: int) -> Int64:
    """Return the slowest rank's encoder work of each step, when tiles are spread over ranks."""
    tiles = found.per_step(found.encoder.sum(axis=1) // unit)
    slowest: Int64 = -(-tiles // found.encoder.shape[1]) * unit
    return slowest


def _dispatched(found: MicroSteps, slowest: Int64) -> dict[str, float]:
    """Return waiting and time; slowest: the encoder's, wherever its ranks wait."""
    ranks = found.encoder.shape[1]
    times = ranks * float(slowest.sum()), ranks * float(found.llm.max(axis=1).sum())
    work = float(found.encoder.sum()), float(found.llm.sum())
    encoder, llm = (1 - done / time for done, time in zip(work, times, strict=True))
    return {
        "encoder": encoder,
        "llm": llm,
        "waiting": 1 - sum(work) / sum(times),
        "time": sum(times) / max(1, int(found.counts.sum())),
    }


ENTERED = "tiles"


def all_or_none_figures(forecast: Forecast) -> dict[str, Any] | None:
    """Return the figures of the plan without and with all_or_none; None if all samples have images.

    A row, the microbatches that run side by side, is mixed where some ranks have images and others
    have none: with a sharded encoder (FSDP) such a step hangs, unless batches get a dummy tile.
    Of each {"mixed": share of rows, "microbatch" and "step": waiting, by when ranks wait}, with
    the plan that `waits` of the settings asks for.
    """
    table, plan = forecast.table, forecast.plan
    if ENTERED not in table.resources:
        return None
    column = table.resources.index(ENTERED)
    has = table.costs[:, column] > 0
    if has.all() or not has.any():
        return None
    matched = micro_steps("balanced", table, replace(plan, all_or_none=ENTERED))
    return {
        "given": _mixed(forecast.steps["balanced"], column),
        "matched": _mixed(matched, column),
    }


def _mixed(found: MicroSteps, column: int) -> dict[str, float]:
    has = found.loads[..., column] > 0
    return {
        "mixed": len(mixed_rows(has.T)) / len(has),
        "microbatch": found.waiting,
        "step": found.waiting_once,
    }


# What a shape asks for, as an option of Balance and as arguments of resolve_shapes.
SHAPES: tuple[tuple[str, Mapping[str, int], int, int | None, bool], ...] = (
    ('align={"tokens": 16}', {LLM: 16}, 1, None, False),
    ("cp=16", {}, 16, None, False),
    ("max_shapes=8", {}, 1, 8, False),
    ("fixed=True", {}, 1, None, True),
)


def shape_figures(forecast: Forecast) -> dict[str, dict[str, float]] | None:
    """Return what padding samples or microbatches costs; None without tokens and their budget.

    Of each option {"padding": share of token places that hold no sample's, "efficiency": the
    samples' work over the time of ranks that wait in every microbatch}; "" is the plan as it is.
    """
    table, plan = forecast.table, forecast.plan
    budgets = dict(zip(table.resources, plan.budgets, strict=bool(plan.budgets)))
    most = budgets.get(LLM)
    if most is None:
        return None
    found = {"": _shaped(forecast.steps["balanced"], Sizing(), table, plan)}
    column = table.resources.index(LLM)
    for name, align, cp, shapes, fixed in SHAPES:
        made = resolve_shapes(align, cp, {}, shapes, fixed, {LLM: most})
        sizing = Sizing(
            multiples=tuple((column, each) for each in made.multiples.values()),
            buckets=tuple((column, each) for each in made.buckets.values()),
        )
        padded = replace(table, costs=sizing.rounded(table.costs))
        steps = micro_steps("balanced", padded, replace(plan, buckets=tuple(made.buckets.items())))
        found[name] = _shaped(steps, sizing, table, plan)
    return found


def _shaped(steps: MicroSteps, sizing: Sizing, table: CostTable, plan: Plan) -> dict[str, float]:
    """Return padding and efficiency of planned steps, whose loads are of samples as padded."""
    used = np.array([sample for group in steps.groups for sample in group], np.int64)
    tiles, real = (int(part.sum()) for part in encoder_and_llm(table.resources, table.costs[used]))
    held = sizing.bucketed(steps.loads.reshape(-1, steps.loads.shape[2]))
    encoder, llm = (
        part.reshape(steps.counts.shape) for part in encoder_and_llm(table.resources, held)
    )
    time = int(encoder.max(axis=1).sum()) * plan.tile_tokens + int(llm.max(axis=1).sum())
    work = tiles * plan.tile_tokens + real
    return {
        "padding": 1 - real / max(1, int(llm.sum())),
        "efficiency": work / max(1, time * steps.counts.shape[1]),
    }


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
