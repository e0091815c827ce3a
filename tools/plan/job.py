"""`counterpoise plan job`: one plan of a whole job, from its model, its GPUs and its data."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from ...sched.planners.framework_layouts import TORCHTITAN, megatron_layout, module_names
from ...sched.planners.job.plan import Job, JobPlan
from ...sched.planners.job.planner import CAUSES, JobAnswer, PricedPlan, mfu, plan_job, tokens_per_s
from ...sched.planners.job.pricing import Pricer
from ...sched.planners.job.schema import dump_job, job_file
from ...sched.render.page import Card, Part, Paste, percent, render_report
from ...sched.shapes import read_device, read_model
from ..console.reporting import emit, live_progress, make_table, write_plan
from ..inputs.models import device_option, memory_limit, parse_sizes
from .job_data import balance_of, order_microbatches, read_samples

_COLOURS = ("--waiting", "--imbalance", "--warm-up", "--communication", "--padding")

_COUNT = click.IntRange(min=1)
Json = dict[str, Any]


@click.command("job")
@click.option(
    "--config", "--model", "model", required=True, metavar="NAME|CONFIG|ENCODER+LANGUAGE",
    help="A config.json of Hugging Face, a paper's model, or encoders + language model.",
)  # fmt: skip
@click.option("--gpus", type=_COUNT, required=True, help="GPUs of the cluster.")
@device_option()
@click.option(
    "--data", required=True, help="A data set, a table of costs, or what `analyze` wrote."
)
@click.option(
    "--global-batch", "--batch", "batch", type=_COUNT, required=True, help="Samples a step."
)
@click.option("--cp", type=_COUNT, default=1, show_default=True, help="Context-parallel GPUs.")
@click.option("--tp", default="1,2,4,8", show_default=True, help="Sizes of TP to try.")
@click.option("--memory-gb", type=float, help="GB of a GPU that may be used.  [92 % of the GPU]")
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(min=0),
    help="Of the samples drawn from --data.",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Write the plan here (job.json).")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def job_command(
    model: str,
    gpus: int,
    device: str,
    data: str,
    batch: int,
    cp: int,
    tp: str,
    memory_gb: float | None,
    seed: int,
    out: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Plan a whole job: its parallelism, stages, schedule, recomputation and microbatches.

    The search tries all of them together; the step is simulated on samples of the data. --out
    writes what Pipeline, Units, split and Balance read.

    Example: counterpoise plan job --config internvit-6b+internlm2-20b --gpus 16 --data costs.npz
    --global-batch 64 --out job.json
    """
    for path in (out, html):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise ValueError(f"{path} cannot be written: name a file in a folder that there is")
    found, given = read_model(model), read_device(device)
    began = time.perf_counter()
    with live_progress() as progress:
        samples = read_samples(data, found, batch, seed, cp, progress)
        task = progress.add_task("plan", total=None, live="")

        def look(continued: int, evaluated: int) -> None:
            progress.update(
                task, live=f"{continued:,} partial plans, {evaluated:,} steps simulated"
            )

        job = Job(
            found, given, gpus, memory_limit(memory_gb, given), batch, samples.amounts,
            samples.loads, order_microbatches, cp, parse_sizes(tp, "--tp"),
        )  # fmt: skip
        answer = plan_job(job, look=look)
        progress.update(task, total=1, completed=1)
    report = job_report(job, answer, time.perf_counter() - began)
    if out is not None:
        write_plan(out, _file(job, answer.best, out))
    if html is not None:
        html.write_text(_render_job(report, answer), "utf-8")
    emit(report, as_json, *_tables(report))
    if not as_json:
        click.echo("\n".join(report["arguments"]))


def _file(job: Job, best: PricedPlan, out: Path) -> Json:
    pricer = Pricer(job)
    loads = pricer.loads(best.plan.unit.dp, best.plan.batch)
    stages = len(best.timeline.placement)
    balance = balance_of(best.plan, job, loads.most, stages, out)
    return dump_job(job_file(pricer, best, json.loads(balance.to_json())))


def job_report(job: Job, answer: JobAnswer, seconds: float) -> Json:
    """Return the figures of a plan, of the next ones, and of what would be run today."""
    best, today = answer.best, answer.today
    return {
        "model": job.model.name,
        "gpus": job.gpus,
        "device": job.device.origin,
        "batch": job.batch,
        "limit_bytes": job.memory_bytes,
        **_figures(job, best, best.step_ns),
        "gain": None if today is None else today.step_ns / best.step_ns,
        "today": None if today is None else _figures(job, today, best.step_ns),
        "others": [_figures(job, one, best.step_ns) for one in answer.others],
        "bound_s": answer.bound_ns / 1e9,
        "evaluated": answer.evaluated,
        "seconds": round(seconds, 3),
        "arguments": framework_arguments(job, best.plan),
    }


def _figures(job: Job, one: PricedPlan, best_ns: int) -> Json:
    return {
        "plan": str(one.plan),
        "step_s": one.step_ns / 1e9,
        "mfu": mfu(job, one.step_ns),
        "tokens_per_s": tokens_per_s(job, one.step_ns),
        "memory_bytes": list(one.memory_bytes),
        "lost": one.lost,
        "loses": one.step_ns / best_ns - 1,
    }


def framework_arguments(job: Job, plan: JobPlan) -> list[str]:
    """Return a plan as Megatron-LM's arguments and torchtitan's settings, as far as they have them.

    Neither has been run with them.
    """
    unit, chunks = plan.unit, plan.schedule.chunks
    front = job.encoder_layers if plan.placement == "first" else 0
    first = plan.stages[0] - front
    sizes = (
        f"--tensor-model-parallel-size {unit.tp} --pipeline-model-parallel-size {unit.pp} "
        f"--context-parallel-size {job.cp} --global-batch-size {job.batch}"
    )
    if plan.placement in ("bubbles", "units"):
        return [f"Megatron-LM, torchtitan: neither has encoders in {plan.placement}"]
    if first < 0:
        return ["Megatron-LM, torchtitan: both keep the encoder whole on the first stage"]
    layers = (first, *plan.stages[1:])
    names = json.dumps(module_names(layers, TORCHTITAN, encoder=front > 0))
    degrees = (
        f"tensor_parallel_degree = {unit.tp}, pipeline_parallel_degree = {unit.pp}, "
        f"context_parallel_degree = {job.cp}, module_fqns_per_model_part = {names}"
    )
    known = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zbv": "ZBVZeroBubble"}
    name = known.get(plan.schedule.name, "our schedule as a CSV: counterpoise schedule export")
    again = " --recompute-granularity full" if any(plan.recompute) else ""
    layout = f" --pipeline-model-parallel-layout '{megatron_layout(layers)}'" if unit.pp > 1 else ""
    vpp = f" --num-virtual-stages-per-pipeline-rank {chunks}" if chunks > 1 and not layout else ""
    plain = plan.schedule.name in ("1f1b", "interleaved")
    return [
        f"Megatron-LM (not run): {sizes}{layout}{vpp}{again}"
        if plain
        else f"Megatron-LM: it has no {plan.schedule.name}",
        f"torchtitan (not run): [parallelism] {degrees}, pipeline_parallel_schedule = {name}",
    ]


def _tables(report: Json) -> Sequence[Table]:
    title = (
        f"{report['step_s']:.3f} s a step, MFU {100 * report['mfu']:.1f} %, "
        f"{report['tokens_per_s']:,.0f} tokens/s, {max(report['memory_bytes']) / 1e9:.1f} GB of "
        f"{report['limit_bytes'] / 1e9:.1f} on the fullest GPU; {report['device']}"
    )
    found = {"this plan": report, "today": report["today"]}
    found |= {f"next, {at}": one for at, one in enumerate(report["others"], start=1)}
    named = {name: one for name, one in found.items() if one is not None}
    figures = make_table(title, "", *named, title_justify="left")
    figures.add_row("step, s", *(f"{one['step_s']:.3f}" for one in named.values()))
    figures.add_row("longer by", *(f"{100 * one['loses']:.1f} %" for one in named.values()))
    figures.add_row("MFU", *(f"{100 * one['mfu']:.1f} %" for one in named.values()))
    for cause in CAUSES:
        figures.add_row(cause, *(f"{100 * one['lost'][cause]:.1f} %" for one in named.values()))
    plans = make_table(None, "", "plan")
    for name, one in named.items():
        plans.add_row(name, one["plan"])
    plans.columns[1].justify = "left"
    return [figures, plans]


def _render_job(report: Json, answer: JobAnswer) -> str:
    """Return the page as HTML."""
    rows = [("This plan", _parts_of(report))]
    if report["today"]:
        rows.append(("As it would be run today", _parts_of(report["today"])))
    plan, limit = answer.best.plan, report["limit_bytes"]
    stages = zip(plan.layout().placement, plan.stages, map(len, plan.recompute), strict=True)
    others = [*report["others"], *([report["today"]] if report["today"] else [])]
    cards = [
        Card(
            "plan", "The plan", "", report["plan"], ("stage", "rank", "layers", "recomputed"),
            [(str(at), *map(str, stage)) for at, stage in enumerate(stages)],
        ),
        Card(
            "memory", "Memory of each rank's fullest GPU", "", "",
            ("rank", "peak", f"of {limit / 1e9:.1f} GB"),
            [
                (str(rank), f"{peak / 1e9:.1f} GB", percent(peak / limit))
                for rank, peak in enumerate(report["memory_bytes"])
            ],
        ),
        Card(
            "others", "The next plans", "", "", ("plan", "step", "loses", "MFU"),
            [
                ("today: " * (one is report["today"]) + one["plan"], f"{one['step_s']:.3f} s",
                 percent(one["loses"]), percent(one["mfu"]))
                for one in others
            ], (), (0,),
        ),
    ]  # fmt: skip
    faster = f", {report['gain']:.2f} x as fast as it would be run today" if report["gain"] else ""
    return render_report(
        f"{report['step_s']:.3f} s a step, {percent(report['mfu'])} of the GPUs' peak{faster} "
        "(simulated)",
        f"{report['model']} on {report['gpus']} GPUs, {report['batch']:,} samples a step, "
        f"{report['tokens_per_s']:,.0f} tokens a second. {report['device']}.",
        rows, Paste("In other frameworks", "\n".join(report["arguments"])), cards,
        "Times and bytes are a model's, the step a simulation. "
        f"{report['evaluated']:,} steps were simulated; a replica of mean size needs "
        f"{report['bound_s']:.3f} s for the work alone. Made by counterpoise plan job.",
        bars_title="Where the GPUs' time goes",
    )  # fmt: skip


def _parts_of(one: Json) -> list[Part]:
    lost = [one["lost"][cause] for cause in CAUSES]
    parts = zip(CAUSES, _COLOURS, lost, strict=True)
    return [
        Part("work", "--work", max(0.0, 1 - sum(lost))),
        *(Part(*part) for part in parts if part[2] > 0.0005),
    ]
