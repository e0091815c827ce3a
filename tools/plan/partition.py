"""`counterpoise plan partition`: how many layers each pipeline stage gets."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import click
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
    split_of,
    step_timer,
    traffic_bytes,
    variance,
)
from ...sched.shapes import ENCODER, memory_of
from ..console.reporting import emit, make_table, write_plan
from ..inputs.models import Setting, with_model

# None: Megatron's string; else what the framework calls a model's modules.
FRAMEWORKS: dict[str, ModuleNames | None] = {
    "megatron": None,
    "torchtitan": TORCHTITAN,
    "automodel": AUTOMODEL,
}


class MeasuredPartition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured partition: each stage's number of layers, and the seconds of a step."""

    layers_per_stage: tuple[Whole, ...]
    seconds: Annotated[float, msgspec.Meta(gt=0)]


_Measurements = Annotated[tuple[MeasuredPartition, ...], msgspec.Meta(min_length=1)]


@click.command("partition")
@with_model
@click.option("--radius", default=3, show_default=True, help="Layers that a border may move.")
@click.option(
    "--keep",
    default=15,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Candidates that are timed.",
)
@click.option("--overlap", is_flag=True, help="Transfers run beside the passes.")
@click.option(
    "--measured",
    type=click.Path(path_type=Path),
    help="Measured steps instead of simulated ones: a JSON list of layers and seconds.",
)
@click.option("--whole-encoder", is_flag=True, help="Keep the encoder in one piece, in front.")
@click.option(
    "--framework",
    type=click.Choice(list(FRAMEWORKS)),
    help="Write the best partition in this framework's form; a split encoder has none.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the best split here (JSON).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def partition_command(
    setting: Setting | None,
    radius: int,
    keep: int,
    overlap: bool,
    measured: Path | None,
    whole_encoder: bool,
    framework: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Split layers over pipeline stages: OmniBal's balanced partition, compared with usual ones.

    To decide by measurement, run once, train a few steps with each of the printed candidates, and
    run again with --measured FILE: [{"layers_per_stage": [22, 23, 24, 24], "seconds": 1.9}, ...].
    --out writes what `counterpoise.sched.runtime.split` cuts a model by.

    Example: counterpoise plan partition --model internvit-6b+internlm2-20b --tp 2 --pp 4
    """
    if setting is None:
        raise ValueError("give --model (or --costs), and --pp")
    if whole_encoder:
        setting = replace(setting, layers=merge_encoder(setting.layers))
    layers, stages = setting.layers, setting.stages
    layout = replace(setting.layout, overlap=overlap)
    step = step_timer(layers, setting.device, layout)
    start = time.perf_counter()
    usual = {name: method(layers, stages) for name, method in BASELINES.items()}
    if measured is None:
        also = tuple(usual.values())  # timed too, so that the answer is no slower
        found = balanced_partition(layers, stages, step, radius=radius, keep=keep, also=also)
    else:
        found = _measured(measured, candidates(layers, stages, radius=radius, keep=keep))
    milliseconds = 1000 * (time.perf_counter() - start)
    methods = {"balanced": found[0][0], **usual}
    rows = {name: _row(setting, sizes, step) for name, sizes in methods.items()}
    report = _report(found[:keep], rows, "simulated" if measured is None else "measured")
    report["milliseconds"] = round(milliseconds, 3)
    report["memory_bytes"] = _memory(setting, found[0][0])
    report["device"] = setting.device.origin
    report |= _framework_split(framework, setting, found[0][0])
    write_plan(out, dump_split(split_of(found[0][0])))
    emit(report, as_json, _method_table(rows), _candidate_table(found[:keep]))
    if framework is not None and not as_json:
        split = report["split"]
        click.echo(split if isinstance(split, str) else json.dumps(split))


def _memory(setting: Setting, sizes: Sizes) -> list[int]:
    """Return every rank's peak with nothing recomputed."""
    cut = replace(setting.layout, stages=sizes)
    return [one.total for one in memory_of(setting.layers, cut)]


def _framework_split(framework: str | None, setting: Setting, sizes: Sizes) -> dict[str, object]:
    """Return the report's part on a partition as a framework takes it, {} without a framework."""
    if framework is None:
        return {}
    decoders = decoder_layers(setting.layers, sizes)
    names = FRAMEWORKS[framework]
    if names is None:
        return {"split": megatron_layout(decoders)}
    encoder = any(layer.kind == ENCODER for layer in setting.layers)
    return {"split": module_names(decoders, names, encoder=encoder)}


def _report(
    found: tuple[tuple[Sizes, int], ...], rows: dict[str, dict[str, Any]], how: str
) -> dict[str, object]:
    return {
        "layers_per_stage": list(found[0][0]),
        "seconds_per_step": found[0][1] / 1e9,
        "how": how,
        "methods": rows,
        "candidates": [
            {"layers_per_stage": list(sizes), "seconds": ns / 1e9} for sizes, ns in found
        ],
    }


def _measured(path: Path, wanted: tuple[Sizes, ...]) -> tuple[tuple[Sizes, int], ...]:
    """Return the measured partitions, the fastest first; raise ValueError for a wrong file."""
    entries, layers = read_json_file(path, _Measurements), sum(wanted[0])
    # Each entry must be a partition of this model into this number of stages.
    for entry in entries:
        sizes = entry.layers_per_stage
        if sum(sizes) != layers or len(sizes) != len(wanted[0]):
            raise ValueError(
                f"{path}: {list(sizes)} does not cut {layers} layers into these stages"
            )
    timed = [(entry.layers_per_stage, round(entry.seconds * 10**9)) for entry in entries]
    return tuple(sorted(timed, key=lambda one: one[1]))


def _row(setting: Setting, sizes: Sizes, step: Callable[[Sizes], int]) -> dict[str, Any]:
    times = [layer.forward_ns for layer in setting.layers]
    return {
        "layers_per_stage": list(sizes),
        "seconds_per_step": step(sizes) / 1e9,
        "variance_ms2": variance(times, sizes) / 1e12,
        "traffic_mib": traffic_bytes(setting.layers, sizes) / 2**20,
        "memory_gb": max(_memory(setting, sizes)) / 1e9,
    }


def _method_table(rows: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="steps simulated, costs modelled")
    for name in ("method", "layers per stage"):
        table.add_column(name)
    for name in ("step, s", "VAR(forward), ms²", "handed on, MiB", "most memory, GB"):
        table.add_column(name, justify="right")
    for name, row in rows.items():
        table.add_row(
            name,
            _words(row["layers_per_stage"]),
            f"{row['seconds_per_step']:.3f}",
            f"{row['variance_ms2']:.1f}",
            f"{row['traffic_mib']:.1f}",
            f"{row['memory_gb']:.1f}",
        )
    return table


def _candidate_table(found: tuple[tuple[Sizes, int], ...]) -> Table:
    table = make_table("candidates, the fastest first", "layers per stage", "step, s")
    for sizes, ns in found:
        table.add_row(_words(sizes), f"{ns / 1e9:.3f}")
    return table


def _words(sizes: Any) -> str:
    return " ".join(map(str, sizes))
