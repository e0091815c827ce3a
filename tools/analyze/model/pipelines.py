"""Models memory and time of pipelines of ranks, and what their speed asks of CPU workers.

Everything here is modelled from shapes (sched.shapes): work at half of a device's peak, activations
without recomputation, weights and optimizer state on every tensor-parallel rank. It compares
settings; measured profiles say what a machine really does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ....balancer.planning.problem.metrics import TILE_TOKENS
from ....sched.ir.registry import schedule
from ....sched.shapes import ModelShape, TransformerLayer, Vocabulary, shape_profile
from ....sched.simulation.cost_profile import profile_costs
from ....sched.simulation.simulator import simulate
from ....sched.simulation.timeline import Timeline
from ...inputs.cost_tables import encoder_and_llm
from ..scan.rows import Rows
from .forecast import Forecast
from .strategies import COUNTED

GB = 10**9
# Memory is linear in tiles and tokens; its slope is taken over this many.
UNIT = 1000
# name: (chunks per rank, shape of the placement)
SCHEDULES = {
    "gpipe": (1, "loop"),
    "1f1b": (1, "loop"),
    "interleaved": (2, "loop"),
    "zb-h1": (1, "loop"),
    "v-half": (2, "v"),
    "zbv": (2, "v"),
}
MicrobatchLoad = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Model:
    """A vision-language model, and the tokens of its LLM that cost as much as a tile."""

    name: str
    shape: ModelShape
    tile_tokens: int


MODELS = {
    "6b+20b": Model(
        "6b+20b",
        ModelShape(
            layer=TransformerLayer(6144, 16384, 3, 2048),
            layers=48,
            vocabulary=Vocabulary(6144, 92553),
            encoder=TransformerLayer(3200, 12800),
            encoder_layers=45,
            encoder_tokens=1025,
        ),
        TILE_TOKENS,
    ),
    "0.3b+8b": Model(
        "0.3b+8b",
        ModelShape(
            layer=TransformerLayer(4096, 14336, 3, 2048),
            layers=32,
            vocabulary=Vocabulary(4096, 92553),
            encoder=TransformerLayer(1024, 4096),
            encoder_layers=24,
            encoder_tokens=1025,
        ),
        41,
    ),
}


@dataclass(frozen=True, slots=True)
class PipelineMachine:
    """A pipeline of stages x tensor-parallel ranks, and the memory of each device."""

    stages: int = 4
    tensor_parallel: int = 8
    memory_bytes: int = 80 * GB


def peak_bytes(model: Model, machine: PipelineMachine, tiles: int, tokens: int) -> int:
    """Return the peak bytes of the fullest rank under 1F1B if all microbatches are that large."""
    return max(
        fixed + (tiles * tile + tokens * token) // UNIT
        for fixed, tile, token in _bytes_by_rank(model.name, machine)
    )


@cache
def _bytes_by_rank(name: str, machine: PipelineMachine) -> tuple[tuple[int, int, int], ...]:
    """Return for every rank the bytes of its weights and state, of UNIT tiles and of UNIT tokens.

    The number of microbatches that 1F1B keeps on a rank is fixed, so the peak is linear in both.
    """

    def peaks(tiles: int, tokens: int) -> tuple[int, ...]:
        load = {"tiles": tiles, "tokens": tokens, "token_pairs": 0}
        microbatches = [load] * (2 * machine.stages)
        return simulate_schedule("1f1b", MODELS[name], machine, microbatches).peak_bytes

    found = zip(peaks(0, 0), peaks(UNIT, 0), peaks(0, UNIT), strict=True)
    return tuple((none, tile - none, token - none) for none, tile, token in found)


def simulate_schedule(
    name: str, model: Model, machine: PipelineMachine, microbatches: Sequence[MicrobatchLoad]
) -> Timeline:
    """Simulate a schedule; ValueError if it cannot have that many ranks and microbatches."""
    chunks, shape = SCHEDULES[name]
    spread = replace(model.shape, tensor_parallel=machine.tensor_parallel)
    profile = shape_profile(spread, ranks=machine.stages, chunks=chunks, shape=shape)
    program = schedule(name, ranks=machine.stages, microbatches=len(microbatches))
    return simulate(program, profile_costs(profile, microbatches))


def most_tiles(model: Model, machine: PipelineMachine, tokens: int) -> int:
    """Return the most tiles that fit beside `tokens`, -1 if the tokens alone do not fit.

    Peak memory grows with both, so a binary search finds the answer.
    """
    if peak_bytes(model, machine, 0, tokens) > machine.memory_bytes:
        return -1
    low, high = 0, 1
    while peak_bytes(model, machine, high, tokens) <= machine.memory_bytes:
        low, high = high, 2 * high
        if high > 1 << 20:
            return low
    while high - low > 1:
        middle = (low + high) // 2
        fits = peak_bytes(model, machine, middle, tokens) <= machine.memory_bytes
        low, high = (middle, high) if fits else (low, middle)
    return low


def shares(model: Model, load: MicrobatchLoad) -> dict[str, float]:
    """Return the encoder's and the vocabulary's share of a microbatch's work."""
    shape = model.shape
    tokens, tiles, pairs = load["tokens"], load["tiles"], load["token_pairs"]
    words = shape.vocabulary.forward_flops(tokens)
    layers = shape.layers * shape.layer.forward_flops(tokens=tokens, pairs=pairs)
    encoder = 0
    if shape.encoder is not None:
        each = shape.encoder.forward_flops(
            tokens=shape.encoder_tokens, pairs=shape.encoder_tokens**2
        )
        encoder = shape.encoder_layers * tiles * each
    total = max(1, words + layers + encoder)
    return {"encoder": encoder / total, "vocabulary": words / total}


Json = dict[str, Any]
Load = dict[str, int]
# Ranks simulated of each plan; the slowest of them sets the step's time.
RANKS_SIMULATED = 4
# Tokens or tiles of a sample: the times of attention on more are no 64-bit nanoseconds.
MOST_MODELLED = 2**24


def pipeline_figures(forecast: Forecast, model: Model, machine: PipelineMachine) -> Json:
    """Return speed, idle time and memory of every schedule, for the random and the balanced plan.

    A step takes as long as the slowest of its ranks. {} without tokens, with too few samples, or
    with some so long that no model has times for them.
    """
    if "tokens" not in forecast.table.resources or forecast.table.costs.max() > MOST_MODELLED:
        return {}
    count = 2 * machine.stages
    loads = {name: _loads(forecast, name, count) for name in ("random", "balanced")}
    if not all(samples for _, samples in loads.values()):
        return {}
    rows = []
    for kind in SCHEDULES:
        row: Json = {"schedule": kind}
        for name, (ranks, samples) in loads.items():
            total = samples * forecast.plan.ranks / len(ranks)
            row[name] = _simulated(kind, model, machine, ranks, total)
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


# The schedule whose modelled speed the workers must keep up with.
SCHEDULE = "1f1b"


def host_figures(rows: Rows, pipelines: Json) -> Json:
    """Return CPU time and bytes of a sample, and the workers and bytes per second they lead to.

    Times are None if nothing was timed. The rates need the figures of simulated pipelines.
    """
    times = rows.cpu_times
    known = rows.nbytes[rows.nbytes >= 0]
    found: Json = {
        "probed": times.probed,
        "probe_ms": times.probe_ns / times.probed / 1e6 if times.probed else None,
        "decoded": times.decoded,
        "decode_ms": times.decode_ns / times.decoded / 1e6 if times.decoded else None,
        "bytes_per_sample": float(known.mean()) if len(known) else None,
    }
    schedules = pipelines.get("schedules", [])
    rates = [one["balanced"]["samples_per_s"] for one in schedules if one["schedule"] == SCHEDULE]
    if rates:
        found["samples_per_s"] = rates[0]
        if found["decode_ms"] is not None:
            found["workers"] = rates[0] * found["decode_ms"] / 1000
        if found["bytes_per_sample"] is not None:
            found["bytes_per_s"] = rates[0] * found["bytes_per_sample"]
    return found
