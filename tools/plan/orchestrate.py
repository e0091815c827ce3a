"""`counterpoise plan orchestrate`: GPUs, TP, DP, PP, VPP for encoder, backbone and generator."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from ...sched.planners.orchestration.baselines import MEGATRON_STAGES, baselines
from ...sched.planners.orchestration.models import FROZEN, modules_of, read_modules
from ...sched.planners.orchestration.simulated import MEAN, RankedLayout, plan_layouts, rerank
from ...sched.planners.orchestration.units import Module, OrchestrationProblem, Unit
from ...sched.shapes import Device, read_device, read_model
from ..console.reporting import emit, make_table, write_plan
from ..inputs.files import parse_text
from ..inputs.models import (
    amounts_of,
    device_option,
    draw_costs,
    memory_limit,
    model_option,
    parse_sizes,
)


@click.command("orchestrate")
@click.option("--gpus", type=click.IntRange(min=1), required=True, help="GPUs of the cluster.")
@click.option("--batch", type=click.IntRange(min=1), required=True, help="Samples a step.")
@model_option()
@click.option("--costs", type=click.Path(path_type=Path), help="Measured modules (JSON) instead.")
@device_option()
@click.option("--memory-gb", type=float, help="GB of a GPU that may be used.  [92 % of the GPU]")
@click.option("--vpp", default="1", show_default=True, help="Chunks a stage to try, as 1,2,4.")
@click.option("--tiles", type=click.IntRange(min=1), help="Of a sample.  [default: the model's]")
@click.option("--frozen", multiple=True, type=click.Choice(FROZEN), help="No weight gradients.")
@click.option("--recompute", is_flag=True, help="Recompute every layer (of a named model).")
@click.option(
    "--data",
    type=click.Path(exists=True, path_type=Path),
    help="What `analyze` wrote, or an npz of costs: samples for the simulation.",
)
@click.option("--resource", default="tiles", show_default=True, help="What images cost in --data.")
@click.option("--keep", default=5, show_default=True, type=click.IntRange(1, 100))
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(min=0),
    help="Of the samples drawn from --data.",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Write the best layout here (JSON).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def orchestrate_command(
    gpus: int,
    batch: int,
    model: str | None,
    costs: Path | None,
    device: str,
    memory_gb: float | None,
    vpp: str,
    tiles: int | None,
    frozen: tuple[str, ...],
    recompute: bool,
    data: Path | None,
    resource: str,
    keep: int,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Place encoder, language model and generator on a cluster (DistTrain, section 5).

    The simulator runs the best plans by the formula; the fastest of them is the answer. --out
    writes what `counterpoise.sched.runtime.Units.from_layout` starts a job from.

    Example: counterpoise plan orchestrate --gpus 1296 --batch 1920 --model mllm-72b --json
    """
    found_device = read_device(device)
    drawn = draw_costs(data, resource, batch, seed) if data else []
    modules, mean = _modules(model, costs, found_device, tiles, frozen, recompute, drawn)
    chunks = parse_sizes(vpp, "--vpp")
    room = memory_limit(memory_gb, found_device)
    speed = found_device.network_bytes_per_s // 10**6
    job = OrchestrationProblem(modules, gpus, batch, room, link_mb_per_s=speed, chunks=chunks)
    start = time.perf_counter()
    work = _work(modules, drawn, mean)
    found = plan_layouts(job, keep, work)
    milliseconds = 1000 * (time.perf_counter() - start)
    usual = baselines(job, MEGATRON_STAGES.get(model or ""))
    compared = {name: rerank(job, [one], work)[0] for name, one in usual.items()}
    report = _report(job, found, milliseconds, compared, found_device)
    write_plan(out, {"version": 1, "units": report["units"]})
    published = model in MEGATRON_STAGES
    gains = _gain_table(report, published)
    tables = _unit_table(job, found[0]), _candidate_table(job, found), gains
    emit(report, as_json, *tables)


def _modules(
    model: str | None,
    costs: Path | None,
    device: Device,
    tiles: int | None,
    frozen: Sequence[str],
    recompute: bool,
    drawn: Sequence[int],
) -> tuple[tuple[Module, ...], int | None]:
    """Return the modules, and the tiles of the sample that their times are of, where known."""
    if costs is not None:
        if model is not None or frozen or recompute or tiles:
            raise ValueError(
                "--model, --frozen, --recompute and --tiles do not go with --costs; put them there"
            )
        return parse_text(costs, read_modules), None
    if model is None:
        raise ValueError("give --model, or --costs FILE of measured modules")
    found = read_model(model)
    if tiles is None and drawn:
        tiles = max(1, round(sum(drawn) / len(drawn)))
    amounts = amounts_of(found, tiles, None)
    return modules_of(found, device, amounts, frozen, recompute), tiles


def _work(
    modules: Sequence[Module], costs: Sequence[int], tiles: int | None
) -> dict[str, list[int]]:
    """Return samples' work in encoder and generator, in thousandths of the modules' times."""
    if not costs:
        return {}
    mean = sum(costs) / len(costs) if tiles is None else tiles
    if mean == 0:
        raise ValueError("no sample of --data has any images; leave --data out")
    shares = [round(MEAN * cost / mean) for cost in costs]
    return {module.name: shares for module in modules if module.name != "backbone"}


def _unit(unit: Unit) -> dict[str, int]:
    return {"gpus": unit.gpus, "tp": unit.tp, "dp": unit.dp, "pp": unit.pp, "vpp": unit.vpp}


def _units(job: OrchestrationProblem, units: Sequence[Unit]) -> dict[str, dict[str, int]]:
    return {m.name: _unit(unit) for m, unit in zip(job.modules, units, strict=True)}


def _report(
    job: OrchestrationProblem,
    found: Sequence[RankedLayout],
    milliseconds: float,
    compared: Mapping[str, RankedLayout],
    device: Device,
) -> dict[str, Any]:
    best = found[0]
    usual = {}
    for name, one in compared.items():
        gain = one.simulated_ns / best.simulated_ns
        per_gpu = gain * one.layout.gpus / best.layout.gpus
        described = _described(job, one, device)
        usual[name] = described | {"gain": round(gain, 3), "gain_per_gpu": round(per_gpu, 3)}
    return {
        "units": _units(job, best.layout.units),
        "gpus": best.layout.gpus,
        "seconds_per_iteration": best.simulated_ns / 1e9,
        "mfu": _mfu(job, best, device),
        "milliseconds": round(milliseconds, 3),
        "candidates": [_described(job, one, device) for one in found],
        "baselines": usual,
        "device": device.origin,
    }


def _described(job: OrchestrationProblem, one: RankedLayout, device: Device) -> dict[str, Any]:
    sizes = zip(job.modules, one.memory_bytes, strict=True)
    return {
        "units": _units(job, one.layout.units),
        "gpus": one.layout.gpus,
        "seconds_by_formula": one.layout.formula_ns / 1e9,
        "seconds_per_iteration": one.simulated_ns / 1e9,
        "mfu": _mfu(job, one, device),
        "memory_gb": {module.name: size / 1e9 for module, size in sizes},
    }


def _mfu(job: OrchestrationProblem, one: RankedLayout, device: Device) -> float | None:
    """Return the share of the GPUs' peak that a step uses; None for measured modules."""
    if not all(module.flops for module in job.modules):
        return None
    done = job.batch * sum(module.flops for module in job.modules)
    return done / (one.simulated_ns / 1e9 * one.layout.gpus * device.flops_per_s)


def _unit_table(job: OrchestrationProblem, best: RankedLayout) -> Table:
    title = f"{best.simulated_ns / 1e9:.2f} s a step, simulated; modelled costs"
    table = make_table(title, "module", "GPUs", "TP", "DP", "PP", "VPP", "GB of a GPU")
    rows = zip(job.modules, best.layout.units, best.memory_bytes, strict=True)
    for module, unit, size in rows:
        numbers = map(str, _unit(unit).values())
        table.add_row(module.name, *numbers, f"{size / 1e9:.1f} of {job.memory_bytes / 1e9:.0f}")
    return table


def _candidate_table(job: OrchestrationProblem, found: Sequence[RankedLayout]) -> Table:
    table = Table(title="candidates, GPUs as TP x DP x PP x VPP")
    for module in job.modules:
        table.add_column(module.name)
    for name in ("GPUs", "formula, s", "simulated, s"):
        table.add_column(name, justify="right")
    for one in found:
        units = ("x".join(map(str, (u.tp, u.dp, u.pp, u.vpp))) for u in one.layout.units)
        times = (one.layout.formula_ns, one.simulated_ns)
        table.add_row(*units, str(one.layout.gpus), *(f"{ns / 1e9:.2f}" for ns in times))
    return table


NAMES = {
    "rigid": "best of one TP and DP",
    "megatron": "Megatron-LM's, widest TP",
    "ratio": "GPUs by operations",
}


def _gain_table(report: Mapping[str, Any], published: bool) -> Table:
    columns = ("GPUs", "step, s", "MFU", "gain", "gain a GPU")
    table = make_table("Against other layouts, simulated", "layout", *columns)
    if published:
        table.caption = (
            "DistTrain's figures also have its overlapped tensor parallelism (1.15 to 1.17 x at TP "
            "8, Fig. 22) and its order of samples (1.03 to 1.11 x, Fig. 18), which these have not"
        )
    mine = {"gain": 1.0, "gain_per_gpu": 1.0, **{key: report[key] for key in ("gpus", "mfu")}}
    mine["seconds_per_iteration"] = report["seconds_per_iteration"]
    for title, row in {"this plan": mine, **report["baselines"]}.items():
        mfu = f"{row['mfu']:.1%}" if row["mfu"] else "-"
        gains = (f"{row[key]:.2f}" for key in ("gain", "gain_per_gpu"))
        seconds = f"{row['seconds_per_iteration']:.2f}"
        table.add_row(NAMES.get(title, title), str(row["gpus"]), seconds, mfu, *gains)
    return table
