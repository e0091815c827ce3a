"""`counterpoise plan job --only partition`: how many layers each pipeline stage gets."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from rich.table import Table

from ...sched.ir.typed_json import Whole, read_json_file
from ...sched.planners.framework_layouts import (
    AUTOMODEL,
    TORCHTITAN,
    ModuleNames,
    decoder_layers,
    megatron_layout,
    merge_encoder,
    module_names,
)
from ...sched.planners.stage_split import (
    BASELINES,
    Sizes,
    balanced_partition,
    candidates,
    dump_split,
    make_split,
    step_timer,
    traffic_bytes,
    variance,
)
from ...sched.shapes import ENCODER, chain_memory
from ..console.reporting import make_table
from .chain import Chain, read_chain
from .question import PlanAnswer, PlanQuestion

# None: Megatron's string; else what the framework calls a model's modules.
FRAMEWORKS: dict[str, ModuleNames | None] = {
    "megatron": None,
    "torchtitan": TORCHTITAN,
    "automodel": AUTOMODEL,
}
# Partitions that are timed.
KEEP = 15


class MeasuredPartition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured partition: each stage's number of layers, and the seconds of a step."""

    layers_per_stage: tuple[Whole, ...]
    seconds: Annotated[float, msgspec.Meta(gt=0)]


_Measurements = Annotated[tuple[MeasuredPartition, ...], msgspec.Meta(min_length=1)]


def plan_partition(question: PlanQuestion) -> PlanAnswer:
    """Split layers over pipeline stages: OmniBal's balanced partition, compared with usual ones."""
    chain = read_chain(question)
    if question.whole_encoder:
        chain = replace(chain, layers=merge_encoder(chain.layers))
    layers, stages = chain.layers, chain.stages
    step = step_timer(layers, chain.device, chain.layout)
    start = time.perf_counter()
    usual = {name: method(layers, stages) for name, method in BASELINES.items()}
    if question.measured is None:
        timed = balanced_partition(layers, stages, step, keep=KEEP)[:KEEP]
    else:
        timed = _read_timings(question.measured, candidates(layers, stages, keep=KEEP))[:KEEP]
    milliseconds = 1000 * (time.perf_counter() - start)
    best, best_ns = timed[0]
    rows = {
        name: _describe_partition(chain, sizes, step)
        for name, sizes in {"balanced": best, **usual}.items()
    }
    report = {
        "layers_per_stage": list(best),
        "seconds_per_step": best_ns / 1e9,
        "how": "simulated" if question.measured is None else "measured",
        "methods": rows,
        "candidates": [
            {"layers_per_stage": list(sizes), "seconds": ns / 1e9} for sizes, ns in timed
        ],
        "milliseconds": round(milliseconds, 3),
        "memory_bytes": _rank_memory(chain, best),
        "device": chain.device.origin,
    }
    lines = []
    if question.framework is not None:
        split = _framework_split(FRAMEWORKS[question.framework], chain, best)
        report["split"] = split
        lines = [split if isinstance(split, str) else json.dumps(split)]
    return PlanAnswer(report, _tables(report), lambda: dump_split(make_split(best)), lines)


def _rank_memory(chain: Chain, sizes: Sizes) -> list[int]:
    """Return every rank's peak with nothing recomputed."""
    cut = replace(chain.layout, stages=sizes)
    return [memory.total for memory in chain_memory(chain.layers, cut)]


def _framework_split(
    names: ModuleNames | None, chain: Chain, sizes: Sizes
) -> str | list[list[str]]:
    """Return a partition as a framework takes it."""
    decoders = decoder_layers(chain.layers, sizes)
    if names is None:
        return megatron_layout(decoders)
    encoder = any(layer.kind == ENCODER for layer in chain.layers)
    return module_names(decoders, names, encoder=encoder)


def _read_timings(path: Path, proposed: tuple[Sizes, ...]) -> tuple[tuple[Sizes, int], ...]:
    """Return the measured partitions, the fastest first; raise ValueError for a wrong file."""
    entries, layers = read_json_file(path, _Measurements), sum(proposed[0])
    # Each entry must be a partition of this model into this number of stages.
    for entry in entries:
        sizes = entry.layers_per_stage
        if sum(sizes) != layers or len(sizes) != len(proposed[0]):
            raise ValueError(
                f"{path}: {list(sizes)} does not cut {layers} layers into these stages"
            )
    timed = [(entry.layers_per_stage, round(entry.seconds * 10**9)) for entry in entries]
    return tuple(sorted(timed, key=lambda timing: timing[1]))


def _describe_partition(chain: Chain, sizes: Sizes, step: Callable[[Sizes], int]) -> dict[str, Any]:
    times = [layer.forward_ns for layer in chain.layers]
    return {
        "layers_per_stage": list(sizes),
        "seconds_per_step": step(sizes) / 1e9,
        "variance_ms2": variance(times, sizes) / 1e12,
        "traffic_mib": traffic_bytes(chain.layers, sizes) / 2**20,
        "memory_gb": max(_rank_memory(chain, sizes)) / 1e9,
    }


def _tables(report: dict[str, Any]) -> tuple[Table, Table]:
    figures = ("step, s", "VAR(forward), ms²", "handed on, MiB", "most memory, GB")
    methods = make_table("steps simulated, costs modelled", "method", "layers per stage", *figures)
    for name, row in report["methods"].items():
        methods.add_row(
            name, _words(row["layers_per_stage"]), f"{row['seconds_per_step']:.3f}",
            f"{row['variance_ms2']:.1f}", f"{row['traffic_mib']:.1f}", f"{row['memory_gb']:.1f}",
        )  # fmt: skip
    timed = make_table("candidates, the fastest first", "layers per stage", "step, s")
    for candidate in report["candidates"]:
        timed.add_row(_words(candidate["layers_per_stage"]), f"{candidate['seconds']:.3f}")
    return methods, timed


def _words(sizes: Any) -> str:
    return " ".join(map(str, sizes))
