"""`counterpoise plan orchestrate`: GPUs, TP, DP, PP, VPP for encoder, backbone and generator."""

import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from ...sched.planners.orchestration.models import FROZEN, PRESETS, preset, read_modules
from ...sched.planners.orchestration.search import rigid
from ...sched.planners.orchestration.simulated import MEAN, RankedLayout, plan_layouts, rerank
from ...sched.planners.orchestration.units import Module, OrchestrationProblem, Unit
from ..console.reporting import emit, make_table, write_plan
from ..inputs.files import parse_text
from ..inputs.models import draw_costs, parse_sizes


@click.command("orchestrate")
@click.option("--gpus", type=click.IntRange(min=1), required=True, help="GPUs of the cluster.")
@click.option("--batch", type=click.IntRange(min=1), required=True, help="Samples a step.")
@click.option(
    "--model",
    required=True,
    metavar="NAME|FILE",
    help=f"{', '.join(PRESETS)}, or a JSON file of modules with measured times.",
)
@click.option("--memory", default=74.0, show_default=True, help="GB of a GPU that may be used.")
@click.option("--link", default=25.0, show_default=True, help="GB/s from GPU to GPU of two nodes.")
@click.option("--vpp", default="1", show_default=True, help="Chunks a stage to try, as 1,2,4.")
@click.option("--images", type=click.IntRange(min=1), help="Images of a sample.  [default: 4]")
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
@click.option("--out", type=click.Path(path_type=Path), help="Write the best layout here (JSON).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def orchestrate_command(
    gpus: int,
    batch: int,
    model: str,
    memory: float,
    link: float,
    vpp: str,
    images: int | None,
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
    if not (memory > 0 and link > 0 and memory < 10**6 and link < 10**6):
        raise ValueError(f"--memory {memory}, --link {link}: give GB and GB/s above 0")
    costs = draw_costs(data, resource, batch, seed) if data else []
    modules = _modules(model, images, frozen, recompute, costs)
    chunks, speed = parse_sizes(vpp, "--vpp"), max(1, int(link * 1000))
    room = int(memory * 10**9)
    job = OrchestrationProblem(modules, gpus, batch, room, link_mb_per_s=speed, chunks=chunks)
    start = time.perf_counter()
    work = _work(modules, costs, images if model in PRESETS else None)
    found = plan_layouts(job, keep, work)
    milliseconds = 1000 * (time.perf_counter() - start)
    usual = rigid(job)
    compared = rerank(job, [usual], work)[0] if usual else None
    report = _report(job, found, milliseconds, compared)
    write_plan(out, {"version": 1, "units": report["units"]})
    emit(report, as_json, _unit_table(job, found[0]), _candidate_table(job, found, compared))


def _modules(
    model: str,
    images: int | None,
    frozen: Sequence[str],
    recompute: bool,
    costs: Sequence[int],
) -> tuple[Module, ...]:
    if model in PRESETS:
        return preset(model, _images(images, costs), frozen, recompute)
    path = Path(model)
    if not path.is_file():
        raise ValueError(
            f"--model {model!r}: there is no such file; known models are {', '.join(PRESETS)}"
        )
    if frozen or recompute or images:
        raise ValueError(
            "--frozen, --recompute and --images are for named models; put them into the file"
        )
    return parse_text(path, read_modules)


def _images(images: int | None, costs: Sequence[int]) -> int:
    """Return the images of a sample: as given, else the mean of the data, else 4."""
    if images is not None:
        return images
    return max(1, round(sum(costs) / len(costs))) if costs else 4


def _work(
    modules: Sequence[Module], costs: Sequence[int], images: int | None
) -> dict[str, list[int]]:
    """Return samples' work in encoder and generator, in thousandths of the modules' times."""
    if not costs:
        return {}
    mean = sum(costs) / len(costs) if images is None else images
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
