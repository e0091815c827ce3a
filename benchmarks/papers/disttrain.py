"""DistTrain's tables, by the planner of `plan job --only orchestrate` and its baselines.

The paper prints ranges over its models; the least and the most of ours stand beside them.
"""

import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple, cast

from counterpoise.sched.bubble_filling.presets import model_setup
from counterpoise.sched.bubble_filling.setup import total_ns
from counterpoise.sched.planners.orchestration.baselines import MEGATRON_STAGES, baselines
from counterpoise.sched.planners.orchestration.models import make_modules
from counterpoise.sched.planners.orchestration.simulated import RankedLayout, plan_layouts, rerank
from counterpoise.sched.planners.orchestration.units import OrchestrationProblem
from counterpoise.sched.shapes import ParallelLayout, read_device, read_model

from ..planning.order import compare_orders

Ours = dict[str, float]
SMALL, LARGE = ("mllm-9b", "mllm-15b"), "mllm-72b"
MODELS = (*SMALL, LARGE)
# Section 8.2: 98 GPUs, and these batches.
BATCHES = {"mllm-9b": 128, "mllm-15b": 64, "mllm-72b": 40}
# Section 8.3.1: all frozen, or all but one.
FROZEN = ("encoder", "backbone", "generator")
FREEZES = (FROZEN, *(tuple(one for one in FROZEN if one != left) for left in FROZEN))
A800 = read_device("a800")
MEMORY_BYTES = 92 * A800.memory_bytes // 100
# Figure 18's rows, as `make bench NAME=order` takes them.
ORDERS = ((4, 8, 0.5), (4, 64, 0.5), (8, 32, 0.5), (8, 64, 0.5))


class Gain(NamedTuple):
    """Throughput and utilisation of our layout over another's."""

    throughput: float
    mfu: float


def _job(model: str, gpus: int, batch: int, frozen: tuple[str, ...] = ()) -> OrchestrationProblem:
    found = read_model(model)
    modules = make_modules(found.freeze(*frozen), A800, found.amounts())
    speed = A800.network_bytes_per_s // 10**6
    return OrchestrationProblem(modules, gpus, batch, MEMORY_BYTES, link_mb_per_s=speed)


@cache
def _layouts(
    model: str, gpus: int, batch: int, frozen: tuple[str, ...] = ()
) -> tuple[OrchestrationProblem, RankedLayout, dict[str, RankedLayout]]:
    job = _job(model, gpus, batch, frozen)
    usual = baselines(job, MEGATRON_STAGES[model])
    return job, plan_layouts(job, 1)[0], {k: rerank(job, [one])[0] for k, one in usual.items()}


def _gain(name: str, *job: Any) -> Gain:
    _, best, usual = _layouts(*job)
    times = usual[name].simulated_ns / best.simulated_ns
    return Gain(times, times * usual[name].layout.gpus / best.layout.gpus)


def _range(name: str, values: Iterable[float]) -> Ours:
    every = list(values)
    return {f"{name}least": min(every), f"{name}most": max(every)}


@cache
def _beside() -> tuple[float, float]:
    """Return what Figures 18 and 22 (TP 8) gain together: the least, the most."""
    order, overlap = figure_18(), figure_22()
    return order["least"] * overlap["TP 8, least"], order["most"] * overlap["TP 8, most"]


def _both(ends: Ours) -> Ours:
    """Return a range of gains alone, and with Figures 18 and 22, which DistTrain has too."""
    more = {name: value * _beside()[name.endswith("most")] for name, value in ends.items()}
    return {
        **{f"alone, {name}": value for name, value in ends.items()},
        **{f"with Figures 18 and 22, {name}": value for name, value in more.items()},
    }


def overall(which: str) -> Ours:
    """Return the gains over Megatron-LM on 1,296 GPUs."""
    small, large = ([_gain("megatron", m, 1296, 1920) for m in row] for row in (SMALL, [LARGE]))
    rows = _range("9B and 15B, ", [getattr(one, which) for one in small])
    return _both({**rows, "72B": getattr(large[0], which)})


def figure_15() -> Ours:
    """Return utilisation, and over Megatron-LM's."""
    shares = []
    for model in MODELS:
        job, best, _ = _layouts(model, 1296, 1920)
        flops = job.batch * sum(module.flops for module in job.modules)
        seconds = best.simulated_ns / 1e9
        shares.append(100 * flops / (seconds * best.layout.gpus * A800.flops_per_s))
    gains = {f"over Megatron-LM, {name}": value for name, value in overall("mfu").items()}
    return {**_range("DistTrain, %, ", shares), **gains}


def figure_17() -> Ours:
    """Return both gains over three layouts on 98 GPUs."""
    found: Ours = {}
    names = {"megatron": "Megatron-LM", "ratio": "GPUs by operations", "rigid": "best rigid layout"}
    for name, title in names.items():
        gains = [_gain(name, model, 98, BATCHES[model]) for model in MODELS]
        rows = _range("MFU, ", [one.mfu for one in gains])
        rows |= _range("throughput, ", [one.throughput for one in gains])
        if name == "megatron":
            rows = _both(rows)
        found |= {f"over {title}, {row}": value for row, value in rows.items()}
    return found


def frozen(which: str) -> Ours:
    """Return the range of gains over models and frozen modules."""
    jobs = [(model, 98, BATCHES[model], freeze) for model in MODELS for freeze in FREEZES]
    return _both(_range("", [getattr(_gain("megatron", *job), which) for job in jobs]))


def table_2() -> Ours:
    """Return milliseconds of planning the 72B model."""
    found = {}
    for gpus, batch in ((1296, 1920), (648, 960), (324, 480), (112, 240)):
        job = _job(LARGE, gpus, batch)
        begin = time.process_time()
        plan_layouts(job)
        found[f"{gpus} GPUs"] = 1000 * (time.process_time() - begin)
    return found


def figure_18() -> Ours:
    """Return the range of our order's gains over random ones, and of Algorithm 3's, repaired."""
    rows = [
        cast(dict[str, Any], compare_orders(*size, 1, None, 10, 0)["strategies"]) for size in ORDERS
    ]
    return _range("", [row["two_opt"]["speedup"] for row in rows]) | {
        "Algorithm 3 as repaired, most": max(row["disttrain_alg3"]["speedup"] for row in rows)
    }


def figure_22() -> Ours:
    """Return the ranges of a stage's time over that with collectives in four chunks, by TP."""
    found: dict[str, float] = {}
    for tp in (4, 8):
        times = [[_stage_ns(one, tp, chunks) for chunks in (1, 4)] for one in MODELS]
        found |= _range(f"TP {tp}, ", [whole / cut for whole, cut in times])
    return found


def _stage_ns(name: str, tp: int, chunks: int) -> int:
    model = read_model(name)
    layout = ParallelLayout(tp=tp)
    layer = model_setup(model, A800, layout, model.amounts(), chunks).model.layer
    return total_ns(layer.forward) + total_ns(layer.backward)


FIGURES: dict[str, Callable[..., Ours]] = {
    "Figure 15": figure_15, "Figure 16": lambda: overall("throughput"), "Figure 17": figure_17,
    "Table 2": table_2, "Figure 18": figure_18, "Figure 19": lambda: frozen("mfu"),
    "Figure 20": lambda: frozen("throughput"), "Figure 22": figure_22,
}  # fmt: skip
