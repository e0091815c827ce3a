"""Forecasts `Balance(dispatch="images")`: encoder and language model balanced each by itself.

Images of a step are spread over ranks before its microbatches run, a tile at a time, so in a step
no rank encodes more than the mean, rounded up. The language model's microbatches are planned by
its own work. What moving the images takes is not in the model.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ....balancer.planning.problem.options import ENCODER, NO_WORK
from .forecast import Forecast
from .strategies import MicroSteps, micro_steps


def dispatch_figures(forecast: Forecast) -> dict[str, Any] | None:
    """Return the waiting of encoder and language model, by whole samples and by images.

    Of each {"encoder": share, "llm": share, "waiting": share of both, "time": of a sample, relative
    to whole samples}. None where samples do not cost both.
    """
    whole, others = forecast.steps["balanced"], {*forecast.table.resources} - {*ENCODER, *NO_WORK}
    if not whole.encoder.any() or not whole.llm.any() or not others:
        return None
    table, plan = forecast.table, forecast.plan
    alone = micro_steps("balanced", table, replace(plan, dispatch="images"))
    samples = _figures(whole, whole.encoder.max(axis=1))
    images = _figures(alone, _spread(alone, plan.tile_tokens))
    base = samples["time"] or 1.0
    return {
        name: {**found, "time": found["time"] / base}
        for name, found in (("samples", samples), ("images", images))
    }


def _spread(found: MicroSteps, unit: int) -> Int64:
    """Return the slowest rank's encoder work of each step, when tiles are spread over ranks."""
    steps = np.unique(found.step_of, return_inverse=True)[1]
    tiles = np.zeros(int(steps.max(initial=0)) + 1, np.int64)
    np.add.at(tiles, steps, found.encoder.sum(axis=1) // unit)
    slowest: Int64 = -(-tiles // found.encoder.shape[1]) * unit
    return slowest


def _figures(found: MicroSteps, slowest: Int64) -> dict[str, float]:
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
