"""Models memory and time of pipelines of ranks, and what their speed asks of CPU workers.

Everything here is modelled from shapes (`sched.shapes`), without recomputation. It compares
settings; measured profiles say what a machine really does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from ....balancer.planning.problem.metrics import TILE_TOKENS
from ....sched.ir.program import place
from ....sched.shapes import (
    DEVICES,
    Device,
    Model,
    ParallelLayout,
    SimulatedStep,
    layer_costs,
    memory,
    partition,
    read_model,
    step,
)
from ...inputs.cost_tables import CostTable, encoder_and_llm
from ..scan.rows import Rows
from .forecast import Forecast
from .strategies import COUNTED

GB = 10**9
DEFAULT_MODEL = "internvit-6b+internlm2-20b"
# name: (chunks per rank, shape of the placement)
SCHEDULES = {
    "gpipe": (1, "loop"),
    "1f1b": (1, "loop"),
    "interleaved": (2, "loop"),
    "zb-h1": (1, "loop"),
    "v-half": (2, "v"),
    "zbv": (2, "v"),
}
# Tokens of the microbatch for which the layers are split, with the data's share of tiles.
TYPICAL_TOKENS = 4096
MicrobatchLoad = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PipelineMachine:
    """A model on pipelines of pp x tp GPUs.

    `tiles`: of a typical microbatch, for which the layers are split.
    """

    model: Model = field(default_factory=lambda: read_model(DEFAULT_MODEL))
    device: Device = DEVICES["h100"]
    layout: ParallelLayout = field(default_factory=lambda: ParallelLayout(tp=8, pp=4))
    memory_bytes: int = 80 * GB
    tiles: int = 4

    def for_data(self, table: CostTable) -> "PipelineMachine":
        """Return the machine with the layers split for this data's share of tiles."""
        tiles, tokens = (int(part.sum()) for part in encoder_and_llm(table.resources, table.costs))
        typical = -(-TYPICAL_TOKENS * tiles // max(1, tokens))
        return replace(self, tiles=min(max(1, typical), TYPICAL_TOKENS))


def tile_tokens(model: Model) -> int:
    """Return the tokens of the language model that take as many operations as a tile."""
    if model.name == DEFAULT_MODEL:
        return TILE_TOKENS  # as `Balance` counts where nobody says otherwise
    one = model.amounts(tokens=0, token_pairs=0)
    none = dict.fromkeys(one, 0)
    token = model.language.forward_flops({**none, "tokens": 1000})
    tile = sum(
        replace(part, projector=0).forward_flops({**none, part.unit: 1}) for part in model.encoders
    )
    return max(1, round(1000 * tile / token))


def peak_bytes(machine: PipelineMachine, tiles: int, tokens: int) -> int:
    """Return the peak bytes of the fullest rank under 1F1B if all microbatches are that large."""
    layout = _cut("1f1b", machine, 2 * machine.layout.pp)
    amounts = {"tiles": tiles, "clips": tiles, "tokens": tokens, "token_pairs": tokens}
    return max(one.total for one in memory(machine.model, machine.device, layout, amounts))


@cache
def _cut(name: str, machine: PipelineMachine, microbatches: int) -> ParallelLayout:
    """Return a schedule's layout, its stages as even as they can be."""
    chunks, shape = SCHEDULES[name]
    layout = replace(machine.layout, vpp=chunks, schedule=name, microbatches=microbatches)
    amounts = machine.model.amounts(
        tokens=TYPICAL_TOKENS, token_pairs=TYPICAL_TOKENS**2, tiles=machine.tiles
    )
    layers = layer_costs(machine.model, machine.device, layout, amounts)
    times = [one.forward_ns + one.backward_ns for one in layers]
    placement = place(layout.pp, chunks, "v" if shape == "v" else "loop")
    return replace(layout, stages=partition(times, placement))


def simulate_schedule(
    name: str, machine: PipelineMachine, microbatches: Sequence[MicrobatchLoad]
) -> SimulatedStep:
    """Simulate a schedule; ValueError if it cannot have that many ranks and microbatches."""
    layout = _cut(name, machine, len(microbatches))
    return step(machine.model, machine.device, layout, microbatches)


def shares(model: Model, load: MicrobatchLoad) -> dict[str, float]:
    """Return the encoder's and the vocabulary's share of a microbatch's work."""
    language = model.language
    words = language.vocabulary.forward_flops(load["tokens"]) if language.vocabulary else 0
    layers = language.forward_flops(load) - words
    encoder = sum(part.forward_flops(load) for part in model.encoders)
    total = max(1, words + layers + encoder)
    return {"encoder": encoder / total, "vocabulary": words / total}


Json = dict[str, Any]
Load = dict[str, int]
# Ranks simulated of each plan; the slowest of them sets the step's time.
RANKS_SIMULATED = 4
# Tokens or tiles of a sample: the times of attention on more are no 64-bit nanoseconds.
MOST_MODELLED = 2**24


def pipeline_figures(forecast: Forecast, machine: PipelineMachine) -> Json:
    """Return speed, idle time and memory of every schedule, for the random and the balanced plan.

    A step takes as long as the slowest of its ranks. {} without tokens, with too few samples, or
    with some so long that no model has times for them.
    """
    if "tokens" not in forecast.table.resources or forecast.table.costs.max() > MOST_MODELLED:
        return {}
    count = 2 * machine.layout.pp
    loads = {name: _loads(forecast, name, count) for name in ("random", "balanced")}
    if not all(samples for _, samples in loads.values()):
        return {}
    rows = []
    for kind in SCHEDULES:
        row: Json = {"schedule": kind}
        for name, (ranks, samples) in loads.items():
            total = samples * forecast.plan.ranks / len(ranks)
            row[name] = _simulated(kind, machine, ranks, total)
        rows.append(row)
    typical = {n: _mean(loads["balanced"][0], n) for n in ("tiles", "tokens", "token_pairs")}
    return {"microbatches": count, "shares": shares(machine.model, typical), "schedules": rows}


def _simulated(
    schedule: str, machine: PipelineMachine, ranks: list[list[Load]], samples: float
) -> Json:
    """Return a schedule's figures for the microbatches of some ranks and a step of `samples`."""
    steps = [simulate_schedule(schedule, machine, loads) for loads in ranks]
    slowest_ns = max(one.total_ns for one in steps)
    return {
        "milliseconds": slowest_ns / 1e6,
        "samples_per_s": samples / (slowest_ns / 1e9),
        "bubble": float(np.mean([one.timeline.bubble_ratio for one in steps])),
        "peak_bytes": max(max(one.memory_bytes) for one in steps),
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
