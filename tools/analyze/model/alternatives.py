"""Forecasts other values of Balance: images that travel, shapes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ....balancer.planning.problem.options import ENCODER, LLM, NO_WORK
from ....balancer.planning.problem.shapes import Sizing, resolve_shapes
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
