"""`counterpoise plan job`: one plan of a whole job, or a part of it, from model, GPUs and data."""

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from ...sched.planners.job.plan import Job
from ...sched.planners.job.planner import CAUSES, JobAnswer, PricedPlan, mfu, plan_job, tokens_per_s
from ...sched.planners.job.pricing import Pricer
from ...sched.planners.job.schema import dump_job, job_file
from ...sched.planners.orchestration.units import TENSOR_SIZES
from ...sched.shapes import ENCODER, GENERATOR, LANGUAGE
from ..console.commands import COUNT, FILE, CommandGroup, json_option
from ..console.reporting import emit, live_progress, make_table, progress_console
from ..inputs.models import PARALLEL, device_option, model_option, parallel_option, single
from .job_data import make_balance, order_microbatches, read_samples
from .orchestrate import plan_orchestration
from .partition import FRAMEWORKS, plan_partition
from .question import PARTS, Json, PlanAnswer, PlanQuestion
from .recompute import plan_recomputation


@click.group(name="plan", cls=CommandGroup)
def command() -> None:
    """Plan parallelism: GPUs of each module, layers of each stage, what to recompute.

    Times and memory come from model shapes, or from a file with measured ones; parallelism.md
    says what is assumed.

    Example: counterpoise plan job --only orchestrate --gpus 1296 --samples-per-step 1920
    --model mllm-72b
    """


@command.command(
    "job",
    usual=("--only", "--model", "--gpus", "--device", "--data", "--samples-per-step", "--out"),
)  # fmt: skip
@click.option("--only", type=click.Choice(PARTS), help="Plan this part alone.  [everything]")
@model_option
@click.option("--gpus", type=COUNT, help="GPUs of the cluster.")
@device_option
@click.option("--data", help="A data set, a table of costs, or what `analyze` wrote.")
@click.option("--samples-per-step", type=COUNT, help="Samples of a step: the global batch.")
@parallel_option(
    "tp=2,pp=8,dp=4 of a part; of a whole job cp=2, and sizes of TP to try: tp=4/8.", *PARALLEL
)
@click.option(
    "--frozen", multiple=True, type=click.Choice((ENCODER, LANGUAGE, GENERATOR)),
    help="Parts of the model that are not trained.",
)  # fmt: skip
@click.option("--measured", type=FILE, help="Measured steps, or memory (JSON).")
@click.option("--framework", type=click.Choice(list(FRAMEWORKS)), help="Print its form of a split.")
@click.option("--whole-encoder", is_flag=True, help="Keep the encoder in one piece, in front.")
@click.option("--memory-gb", type=float, help="GB of a GPU that may be used.  [92 % of the GPU]")
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(min=0),
    help="Of the samples drawn from --data.",
)  # fmt: skip
@click.option("--out", type=FILE, help="Write the plan here (job.json).")
@json_option
def job_command(out: Path | None, as_json: bool, **options: Any) -> None:
    """Plan a whole job: its parallelism, stages, schedule, recomputation and microbatches.

    The search tries all of them together; the step is simulated on samples of the data. --out
    writes what Pipeline, Units, split and Balance read. --only plans the layers of each stage
    (partition), the layers to recompute, or the GPUs of each module (orchestrate), from what is
    given of the rest.

    Example: counterpoise plan job --model internvit-6b+internlm2-20b --gpus 16 --data costs.npz
    --samples-per-step 64 --out job.json
    """
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise ValueError(f"{out} cannot be written: name a file in a folder that there is")
    question = PlanQuestion(**options)
    match question.only:
        case "partition":
            answer = plan_partition(question)
        case "recompute":
            answer = plan_recomputation(question)
        case "orchestrate":
            answer = plan_orchestration(question)
        case _:
            answer = plan_whole(question, out or Path("job.json"))
    if out is not None:
        out.write_text(json.dumps(answer.plan(), indent=1) + "\n", "utf-8")
        progress_console.print(f"wrote {out}", soft_wrap=True)
    emit(answer.report, as_json, *answer.tables)
    if not as_json:
        click.echo("\n".join(answer.lines), nl=bool(answer.lines))


def plan_whole(question: PlanQuestion, out: Path) -> PlanAnswer:
    """Plan everything together. `out`: the file of the plan, whose costs an ordering reads."""
    question.need("model", "gpus", "data", "samples_per_step")
    model, device, batch = question.read_model(), question.gpu, question.samples_per_step or 1
    sizes = question.sizes()
    cp = single("cp", sizes.get("cp", (1,)))
    began = time.perf_counter()
    with live_progress() as progress:
        samples = read_samples(question.data or "", model, batch, question.seed, cp, progress)
        task = progress.add_task("plan", total=None, live="")

        def look(continued: int, evaluated: int) -> None:
            progress.update(
                task, live=f"{continued:,} partial plans, {evaluated:,} steps simulated"
            )

        job = Job(
            model, device, question.gpus or 1, question.limit_bytes(), batch, samples.amounts,
            samples.loads, order_microbatches, cp, sizes.get("tp", TENSOR_SIZES),
        )  # fmt: skip
        answer = plan_job(job, look=look)
        progress.update(task, total=1, completed=1)
    report = job_report(job, answer, time.perf_counter() - began)
    return PlanAnswer(report, _tables(report), partial(_file, job, answer.best, out))


def _file(job: Job, best: PricedPlan, out: Path) -> Json:
    pricer = Pricer(job)
    loads = pricer.loads(best.plan.unit.dp, best.plan.batch)
    balance = make_balance(best.plan, job, loads.most, out)
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
        "others": [_figures(job, plan, best.step_ns) for plan in answer.next_plans],
        "bound_s": answer.bound_ns / 1e9,
        "evaluated": answer.evaluated,
        "seconds": round(seconds, 3),
    }


def _figures(job: Job, priced: PricedPlan, best_ns: int) -> Json:
    return {
        "plan": str(priced.plan),
        "step_s": priced.step_ns / 1e9,
        "mfu": mfu(job, priced.step_ns),
        "tokens_per_s": tokens_per_s(job, priced.step_ns),
        "memory_bytes": list(priced.memory_bytes),
        "lost": priced.lost,
        "loses": priced.step_ns / best_ns - 1,
    }


def _tables(report: Json) -> Sequence[Table]:
    title = (
        f"{report['step_s']:.3f} s a step, MFU {100 * report['mfu']:.1f} %, "
        f"{report['tokens_per_s']:,.0f} tokens/s, {max(report['memory_bytes']) / 1e9:.1f} GB of "
        f"{report['limit_bytes'] / 1e9:.1f} on the fullest GPU; {report['device']}"
    )
    plans_by_name = {"this plan": report, "today": report["today"]}
    plans_by_name |= {f"next, {at}": plan for at, plan in enumerate(report["others"], start=1)}
    named = {name: plan for name, plan in plans_by_name.items() if plan is not None}
    figures = make_table(title, "", *named, title_justify="left")
    figures.add_row("step, s", *(f"{plan['step_s']:.3f}" for plan in named.values()))
    figures.add_row("longer by", *(f"{100 * plan['loses']:.1f} %" for plan in named.values()))
    figures.add_row("MFU", *(f"{100 * plan['mfu']:.1f} %" for plan in named.values()))
    for cause in CAUSES:
        figures.add_row(cause, *(f"{100 * plan['lost'][cause]:.1f} %" for plan in named.values()))
    plans = make_table(None, "", "plan")
    for name, plan in named.items():
        plans.add_row(name, plan["plan"])
    plans.columns[1].justify = "left"
    return [figures, plans]
