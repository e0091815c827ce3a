"""DistTrain's tables, by the planner of `counterpoise plan orchestrate`.

The paper prints ranges over its models; the least and the most of ours stand beside them. Images of
a sample are not printed: 4. Megatron-LM's layout is the paper's: TP 8 for all, one stage each for
encoder and generator, 1, 2 and 10 for the backbones.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from counterpoise.sched.bubble_filling.presets import (
    GpuSpec,
    MicrobatchShape,
    Tower,
    language_layer,
)
from counterpoise.sched.bubble_filling.setup import total_ns
from counterpoise.sched.planners.orchestration.models import FROZEN, preset
from counterpoise.sched.planners.orchestration.search import Allocation, divisors
from counterpoise.sched.planners.orchestration.simulated import (
    RankedLayout,
    plan_layouts,
    rerank,
)
from counterpoise.sched.planners.orchestration.units import (
    OrchestrationProblem,
    Unit,
    iteration_ns,
)

from ..planning.order import compare_orders

Ours = Mapping[str, float]
SMALL, LARGE = ("mllm-9b", "mllm-15b"), "mllm-72b"
MODELS = (*SMALL, LARGE)
MEGATRON_STAGES = {"mllm-9b": 1, "mllm-15b": 2, "mllm-72b": 10}
# Section 8.2: 98 GPUs, and these batches.
BATCHES = {"mllm-9b": 128, "mllm-15b": 64, "mllm-72b": 40}
# Section 8.3.1: all frozen, or all but one.
FREEZES = (FROZEN, *(tuple(one for one in FROZEN if one != left) for left in FROZEN))
MEMORY_BYTES = 74 * 10**9
# Shares of the peak that the presets assume; a module's time alone is FLOPs over these.
REACHED = {"encoder": 0.40, "backbone": 0.50, "generator": 0.35}
# Figure 18's rows, as `make bench NAME=order` takes them.
ORDERS = ((4, 8, 0.5), (4, 64, 0.5), (8, 32, 0.5), (8, 64, 0.5))
BACKBONES = (
    Tower("Llama3-7B", 4096, 32, 11008, gated=True),
    Tower("Llama3-13B", 5120, 40, 13824, gated=True),
    Tower("Llama3-70B", 8192, 80, 28672, gated=True, key_value_permille=125),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """Our layout and Megatron-LM's: throughput and utilisation."""

    throughput: float
    utilisation: float
    base_throughput: float
    base_utilisation: float

    @property
    def gains(self) -> tuple[float, float]:
        """Return ours over Megatron-LM's: throughput, utilisation."""
        return (
            self.throughput / self.base_throughput,
            self.utilisation / self.base_utilisation,
        )


@cache
def compared(model: str, gpus: int, batch: int, frozen: tuple[str, ...] = ()) -> Compared:
    """Plan a model's layout, and simulate it and Megatron-LM's."""
    job = OrchestrationProblem(preset(model, 4, frozen), gpus, batch, MEMORY_BYTES)
    both = plan_layouts(job, 1, {})[0], rerank(job, [_megatron(job, model)])[0]
    figures = [(job.batch / one.simulated_ns, _utilisation(job, one)) for one in both]
    return Compared(*figures[0], *figures[1])


def _megatron(job: OrchestrationProblem, model: str) -> Allocation:
    """Return the paper's layout of Megatron-LM with as many replicas as the GPUs hold."""
    stages = (1, MEGATRON_STAGES[model], 1)
    most = max(dp for dp in divisors(job.batch) if 8 * dp * sum(stages) <= job.gpus)
    units = tuple(Unit(8, most, pp) for pp in stages)
    return Allocation(units, iteration_ns(job, units))


def _utilisation(job: OrchestrationProblem, one: RankedLayout) -> float:
    """Return the model FLOPs utilisation in per cent; frozen modules have no backward of weights."""
    work = sum(module.work_ns(1) * REACHED[module.name] for module in job.modules)
    return 100 * work * job.batch / (one.simulated_ns * one.layout.gpus)


def _large() -> dict[str, Compared]:
    return {model: compared(model, 1296, 1920) for model in MODELS}


def figure_15(data: Path | None) -> Ours:
    """Return utilisation, and over Megatron-LM's."""
    found = _large()
    own = [one.utilisation for one in found.values()]
    small = [found[model].gains[1] for model in SMALL]
    return {
        "DistTrain, least, %": min(own),
        "DistTrain, most, %": max(own),
        **_range("9B and 15B over Megatron-LM, ", small),
        "72B over Megatron-LM": found[LARGE].gains[1],
    }


def figure_16(data: Path | None) -> Ours:
    """Return throughput over Megatron-LM's."""
    found = _large()
    small = [found[model].gains[0] for model in SMALL]
    return {**_range("9B and 15B, ", small), "72B": found[LARGE].gains[0]}


def _range(name: str, values: Iterable[float]) -> Ours:
    every = list(values)
    return {f"{name}least": min(every), f"{name}most": max(every)}


def figure_17(data: Path | None) -> Ours:
    """Return both gains on 98 GPUs."""
    found = [compared(model, 98, BATCHES[model]).gains for model in MODELS]
    return {
        **_range("MFU, ", [mfu for _, mfu in found]),
        **_range("throughput, ", [throughput for throughput, _ in found]),
    }


def frozen(which: int) -> Ours:
    """Return the range of gains over models and frozen modules: 0 throughput, 1 utilisation."""
    return _range(
        "",
        [
            compared(model, 98, BATCHES[model], freeze).gains[which]
            for model in MODELS
            for freeze in FREEZES
        ],
    )


def table_2(data: Path | None) -> Ours:
    """Return milliseconds of planning the 72B model."""
    found = {}
    for gpus, batch in ((1296, 1920), (648, 960), (324, 480), (112, 240)):
        job = OrchestrationProblem(preset(LARGE), gpus, batch, MEMORY_BYTES)
        begin = time.process_time()
        plan_layouts(job, 5, {})
        found[f"{gpus} GPUs"] = 1000 * (time.process_time() - begin)
    return found


def figure_18(data: Path | None) -> Ours:
    """Return the range of our order's gains over random ones, and of Algorithm 3's, repaired."""
    rows = [
        cast(dict[str, Any], compare_orders(*size, 1, None, 10, 0)["strategies"])
        for size in ORDERS
    ]
    return _range("", [row["two_opt"]["speedup"] for row in rows]) | {
        "Algorithm 3 as repaired, most": max(row["disttrain_alg3"]["speedup"] for row in rows)
    }


def figure_22(data: Path | None) -> Ours:
    """Return the ranges of a stage's time over that with collectives in four chunks, by TP."""
    found: dict[str, float] = {}
    for tp in (4, 8):
        found |= _range(f"TP {tp}, ", [_stage_ns(one, tp, 1) / _stage_ns(one, tp, 4) for one in BACKBONES])
    return found


def _stage_ns(tower: Tower, tp: int, chunks: int) -> int:
    machine = GpuSpec(312 * 10**12, 500, tensor_bytes_per_s=150 * 10**9, tensor_chunks=chunks)
    layer = language_layer(tower, MicrobatchShape(1, 8192, tp), machine)
    return total_ns(layer.forward) + total_ns(layer.backward)


FIGURES = {
    "Figure 15": figure_15,
    "Figure 16": figure_16,
    "Figure 17": figure_17,
    "Table 2": table_2,
    "Figure 18": figure_18,
    "Figure 19": lambda data: frozen(1),
    "Figure 20": lambda data: frozen(0),
    "Figure 22": figure_22,
}
