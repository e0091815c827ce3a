"""Simulates pipeline schedules on the microbatches that the random and the balanced plan make."""

from typing import Any

import numpy as np

from .forecast import Forecast
from .machine import SCHEDULES, Model, PipelineMachine, shares, simulate_schedule
from .strategies import COUNTED, encoder_and_llm

Json = dict[str, Any]
Load = dict[str, int]
# Ranks simulated of each plan; the slowest of them sets the step's time.
RANKS_SIMULATED = 4


def pipeline_figures(forecast: Forecast, model: Model, machine: PipelineMachine) -> Json:
    """Return speed, idle time and memory of every schedule, for the random and the balanced plan.

    A step takes as long as the slowest of its ranks. {} without tokens, or with too few samples.
    """
    if "tokens" not in forecast.table.resources:
        return {}
    count = 2 * machine.stages
    loads = {name: _loads(forecast, name, count) for name in ("random", "balanced")}
    if not all(samples for _, samples in loads.values()):
        return {}
    rows = []
    for schedule in SCHEDULES:
        row: Json = {"schedule": schedule}
        for name, (ranks, samples) in loads.items():
            total = samples * forecast.plan.ranks / len(ranks)
            row[name] = _simulated(schedule, model, machine, ranks, total)
        rows.append(row)
    typical = {n: _mean(loads["balanced"][0], n) for n in ("tiles", "tokens", "token_pairs")}
    return {"microbatches": count, "shares": shares(model, typical), "schedules": rows}


def _simulated(
    schedule: str, model: Model, machine: PipelineMachine, ranks: list[list[Load]], samples: float
) -> Json:
    """Return a schedule's figures for the microbatches of some ranks and a step of `samples`."""
    timelines = [simulate_schedule(schedule, model, machine, loads) for loads in ranks]
    slowest_ns = max(timeline.makespan_ns for timeline in timelines)
    return {
        "milliseconds": slowest_ns / 1e6,
        "samples_per_s": samples / (slowest_ns / 1e9),
        "bubble": float(np.mean([timeline.bubble_ratio for timeline in timelines])),
        "peak_bytes": max(max(timeline.peak_bytes) for timeline in timelines),
    }


def _loads(forecast: Forecast, name: str, count: int) -> tuple[list[list[Load]], int]:
    """Return the loads of the first `count` microbatches of some ranks, and their samples.

    A plan with fewer microbatches is repeated.
    """
    found = forecast.steps[name]
    lengths = encoder_and_llm(forecast.table.resources, forecast.table.costs)[1]
    all_ranks = found.encoder.shape[1]
    ranks = min(all_ranks, RANKS_SIMULATED)
    rows = np.arange(count) % len(found.encoder)
    tiles = encoder_and_llm(forecast.table.resources, found.loads)[0]
    is_padded = name in COUNTED and forecast.plan.layout == "padded"
    by_rank = []
    for rank in range(ranks):
        loads = []
        for row in rows.tolist():
            group = lengths[list(found.groups[row * all_ranks + rank])]
            if is_padded and len(group):
                group = np.full(len(group), group.max())
            tokens = int(found.llm[row, rank])
            pairs = int((group**2).sum())  # attention grows with the square of a sample's length
            loads.append({"tiles": int(tiles[row, rank]), "tokens": tokens, "token_pairs": pairs})
        by_rank.append(loads)
    return by_rank, int(found.counts[rows][:, :ranks].sum())


def _mean(ranks: list[list[Load]], name: str) -> int:
    return int(np.mean([[load[name] for load in rank] for rank in ranks]))
