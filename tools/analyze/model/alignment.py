"""Forecasts `Balance(align="tiles")`: how many rows are mixed without it, and what it costs.

A row, the microbatches that run side by side, is mixed where some ranks have images and others have
none: with a sharded encoder (FSDP) such a step hangs, unless batches get a dummy tile.
"""

from dataclasses import replace
from typing import Any

from ....balancer.planning.partition.aligned import mixed_rows
from .forecast import Forecast
from .strategies import MicroSteps, micro_steps

ALIGNED = "tiles"


def alignment_figures(forecast: Forecast) -> dict[str, Any] | None:
    """Return the figures of the plan as it is and aligned; None where all samples have images.

    Of each {"mixed": share of rows, "microbatch" and "step": waiting, by when ranks wait}, with
    the plan that `waits` of the settings asks for.
    """
    table, plan = forecast.table, forecast.plan
    if ALIGNED not in table.resources:
        return None
    column = table.resources.index(ALIGNED)
    has = table.costs[:, column] > 0
    if has.all() or not has.any():
        return None
    aligned = micro_steps("balanced", table, replace(plan, align=ALIGNED))
    return {
        "given": _figures(forecast.steps["balanced"], column),
        "aligned": _figures(aligned, column),
    }


def _figures(found: MicroSteps, column: int) -> dict[str, float]:
    has = found.loads[..., column] > 0
    return {
        "mixed": len(mixed_rows(has.T)) / len(has),
        "microbatch": found.waiting,
        "step": found.waiting_once,
    }
