"""`counterpoise plan orchestrate`: GPUs, TP, DP, PP, VPP for encoder, backbone and generator."""

import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from ...sched.planners.orchestration.models import FROZEN, modules_of, read_modules
from ...sched.planners.orchestration.search import rigid
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
    renamed,
)
from ..inputs.programs import with_options


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
@click.option("--seed", default=0, show_default=True, help="Of the samples drawn from --data.")
@with_options(
    renamed(memory="--memory-gb", link="network_bytes_per_s in --device FILE", images="--tiles")
)
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
    usual = rigid(job)
    compared = rerank(job, [usual], work)[0] if usual else None
    report = _report(job, found, milliseconds, compared)
    write_plan(out, {"version": 1, "units": report["units"]})
    emit(report, as_json, _unit_table(job, found[0]), _candidate_table(job, found, compared))


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
    usual: RankedLayout | None,
) -> dict[str, object]:
    return {
        "units": _units(job, found[0].layout.units),
        "gpus": found[0].layout.gpus,
        "seconds_per_iteration": found[0].simulated_ns / 1e9,
        "milliseconds": round(milliseconds, 3),
        "candidates": [_described(job, one) for one in found],
        "rigid": _described(job, usual) if usual else None,
    }


def _described(job: OrchestrationProblem, one: RankedLayout) -> dict[str, object]:
    sizes = zip(job.modules, one.memory_bytes, strict=True)
    return {
        "units": _units(job, one.layout.units),
        "gpus": one.layout.gpus,
        "seconds_by_formula": one.layout.formula_ns / 1e9,
        "seconds_per_iteration": one.simulated_ns / 1e9,
        "memory_gb": {module.name: size / 1e9 for module, size in sizes},
    }


def _unit_table(job: OrchestrationProblem, best: RankedLayout) -> Table:
    title = f"{best.simulated_ns / 1e9:.2f} s a step, simulated; modelled costs"
    table = make_table(title, "module", "GPUs", "TP", "DP", "PP", "VPP", "GB of a GPU")
    rows = zip(job.modules, best.layout.units, best.memory_bytes, strict=True)
    for module, unit, size in rows:
        numbers = map(str, _unit(unit).values())
        table.add_row(module.name, *numbers, f"{size / 1e9:.1f} of {job.memory_bytes / 1e9:.0f}")
    return table


def _candidate_table(
    job: OrchestrationProblem, found: Sequence[RankedLayout], usual: RankedLayout | None
) -> Table:
    table = Table(
        title="candidates, GPUs as TP x DP x PP x VPP",
        caption="last: one TP and DP for all modules (Megatron-LM)" if usual else None,
    )
    for module in job.modules:
        table.add_column(module.name)
    for name in ("GPUs", "formula, s", "simulated, s"):
        table.add_column(name, justify="right")
    for one in (*found, *([usual] if usual else [])):
        if one is usual:
            table.add_section()
        units = ("x".join(map(str, (u.tp, u.dp, u.pp, u.vpp))) for u in one.layout.units)
        times = (one.layout.formula_ns, one.simulated_ns)
        table.add_row(*units, str(one.layout.gpus), *(f"{ns / 1e9:.2f}" for ns in times))
    return table
