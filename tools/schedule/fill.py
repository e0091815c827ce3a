"""`counterpoise schedule fill`: hide the encoders' work in a language model's bubbles."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from ...sched.bubble_filling.choose import Chosen, PlanScan, fitting, scan
from ...sched.bubble_filling.encoder_plans import WARMUPS, EncoderPlan, plans
from ...sched.bubble_filling.filled_program import fill_program
from ...sched.bubble_filling.presets import (
    CASES,
    SET_R_DEVICE,
    case_setup,
    model_setup,
    with_encoder_collectives,
)
from ...sched.bubble_filling.setup import FillSetup, dump_setup, load_setup
from ...sched.bubble_filling.timeline import bubble_causes, fill_timeline
from ...sched.ir.program import format_program
from ...sched.render.summary import format_memory
from ...sched.shapes import Amounts, Model, ParallelLayout, read_device, read_model
from ..console.commands import COUNT, FILE, Command, json_option
from ..console.reporting import emit, make_table, progress_console
from ..inputs.files import parse_text
from ..inputs.models import (
    device_option,
    memory_limit,
    model_option,
    parallel_option,
    parse_parallel,
    single,
)
from ..inputs.programs import check_sizes, parse_amounts
from .compare import draw

PARALLEL_SIZES = ("tp", "pp", "dp", "vpp", "microbatches")
# Plans that are printed.
SHOWN = 8
# Optimus' copies of encoders took "less than 12 %" of memory in addition (section 4.5).
MOST_COPIES = 0.12


@click.command(
    "fill", cls=Command, usual=("--case", "--model", "--device", "--parallel", "--out", "--json")
)
@click.option("--case", type=click.Choice(list(CASES)), help="A job of the paper.  [3072]")
@click.option("--profile", type=FILE, help="A measured job (JSON) instead.")
@model_option
@device_option
@parallel_option(
    "With --model tp=8,pp=4,dp=4,vpp=1,microbatches=32; else microbatches alone.", *PARALLEL_SIZES
)
@click.option(
    "--holds", default="", metavar="RESOURCE=AMOUNT,...",
    help="With --model: what a microbatch holds, such as tokens=8192.  [the model's]",
)  # fmt: skip
@click.option(
    "--tp-chunks", default=1, show_default=True, type=COUNT,
    help="Chunks in which a case's tensor-parallel collectives run beside their products.",
)  # fmt: skip
@click.option("--pp-enc", type=COUNT, help="Only encoder pipelines of this number of ranks.")
@click.option("--tp-enc", type=COUNT, help="Only encoders over this number of TP ranks.")
@click.option("--whole", is_flag=True, help="Keep kernels whole.")
@click.option(
    "--executable", is_flag=True, help="Only whole layers between passes, as the runtime runs any."
)
@click.option("--out", type=FILE, help=".svg, .json (trace) or .txt.")
@click.option("--dump-profile", is_flag=True, help="Print the job as JSON, to edit, and stop.")
@json_option
def command(
    case: str | None, profile: Path | None, model: str | None, device: str, parallel: str,
    holds: str, tp_chunks: int, pp_enc: int | None, tp_enc: int | None, whole: bool,
    executable: bool, out: Path | None, dump_profile: bool, as_json: bool,
) -> None:  # fmt: skip
    """Fill a language model's bubbles with its encoders' kernels, and choose the encoders' plan.

    The job is one of the Optimus paper's with the constants of set R (--case), a model of your own
    on a device (--model), or a measured one (--profile). A plan named in full (--pp-enc, --tp-enc)
    is tried whatever memory its copies of the encoders add.

    Example: counterpoise schedule fill --case 3072 --pp-enc 2 --tp-enc 8
    """
    if profile and tp_chunks != 1:
        raise ValueError("--tp-chunks is for a case; a profile has what its collectives took")
    if len([source for source in (case, profile, model) if source]) > 1:
        raise ValueError("give one of --case, --profile and --model")
    if holds and not model:
        raise ValueError("--holds is for --model; a case and a profile have their kernels' times")
    gpu = read_device(device) if model else SET_R_DEVICE
    names = PARALLEL_SIZES if model else ("microbatches",)
    sizes: dict[str, Any] = {
        name: single(name, numbers) for name, numbers in parse_parallel(parallel, names).items()
    }
    if profile:
        setup = replace(parse_text(profile, load_setup), **sizes)
    elif model:
        shape, layout = read_model(model), ParallelLayout(**{"microbatches": 32, **sizes})
        setup = model_setup(shape, gpu, layout, _microbatch(shape, holds), tp_chunks)
        setup = replace(setup, memory_bytes=memory_limit(None, gpu))
    else:
        setup = replace(case_setup(case or "3072", chunks=tp_chunks), **sizes)
    check_sizes(stages=setup.stages, microbatches=setup.microbatches, chunks=setup.chunks)
    setup = with_encoder_collectives(setup, gpu)
    if dump_profile:
        click.echo(dump_setup(setup))
        return
    fill_plans = partial(
        scan, setup, candidates=_candidates(setup, pp_enc, tp_enc),
        most_copies=math.inf if pp_enc and tp_enc else MOST_COPIES,
    )  # fmt: skip
    splittings = (None,) if whole else (None, *fitting(setup))
    # Whole layers are not split.
    plans_tried = (
        fill_plans(prune=False, executable=True)
        if executable
        else fill_plans(splittings=splittings)
    )
    best = plans_tried.best
    if out is not None:
        out.write_text(_picture(best, out), "utf-8")
        progress_console.print(f"wrote {out}")
    report = scan_report(plans_tried)
    lines = [*summary(best), best.filled.note]
    if executable:
        # Filling kernels inside passes too hides more.
        finer = fill_plans(splittings=splittings).best
        report["kernel_level"] = chosen_report(finer)
        lines.append(
            f"Kernels inside passes, for which a model's modules offer points, would hide "
            f"{finer.filled.efficiency:.1%} instead of {best.filled.efficiency:.1%} (simulated)."
        )
    emit(report, as_json, bubble_table(best), plan_table(plans_tried))
    for line in filter(None, () if as_json else lines):
        click.echo(line)


def _microbatch(model: Model, holds: str) -> Amounts:
    """Return a model's usual microbatch with what --holds has; tokens are one sequence."""
    amounts: dict[str, int | None] = {**parse_amounts("--holds", holds.split(","))} if holds else {}
    usual = dict(model.usual)
    if unknown := amounts.keys() - usual:
        raise ValueError(
            f"--holds got {min(unknown)!r:.80}; a microbatch of {model.name} has {', '.join(usual)}"
        )
    if tokens := amounts.get("tokens"):
        amounts["token_pairs"] = tokens**2
    return model.amounts(**amounts)


def _candidates(setup: FillSetup, stages: int | None, tensor: int | None) -> Sequence[EncoderPlan]:
    """Return the plans asked for; one that does not divide is kept, to be rejected later."""
    # A plan that was named in full is tried, even if `plans` would not propose it.
    if stages is not None and tensor is not None:
        both = (True, False)
        return [EncoderPlan(stages, tensor, again, way) for way in WARMUPS for again in both]
    if stages is not None and setup.stages % stages:
        return [EncoderPlan(stages, setup.tensor)]
    proposed = plans(setup)
    return [
        plan for plan in proposed if stages in (None, plan.stages) and tensor in (None, plan.tensor)
    ]


def _picture(best: Chosen, out: Path) -> str:
    both = [best.host.timeline, fill_timeline(best.host, best.filled, encoder_bytes(best))]
    if text := draw(out.suffix, both, "Encoder work in the language model's bubbles"):
        return text
    if out.suffix == ".txt":
        return format_program(fill_program(best.host, best.filled)) + "\n"
    raise ValueError(f"--out got {out}; end it in .svg, .json or .txt")


def chosen_report(chosen: Chosen) -> dict[str, object]:
    """Return a plan and its figures, as JSON."""
    plan, need = chosen.plan, chosen.memory
    return {
        "pp_enc": plan.stages,
        "tp_enc": plan.tensor,
        "recompute": plan.recompute,
        "warmup": plan.warmup,
        "longest_piece_us": chosen.splitting.longest_ns / 1e3 if chosen.splitting else None,
        "eff": chosen.filled.efficiency,
        "step_seconds": chosen.filled.step_ns / 1e9,
        "exposed_seconds": [chosen.filled.before_ns / 1e9, chosen.filled.after_ns / 1e9],
        "memory_gb": (need.model + encoder_bytes(chosen)) / 1e9,
        "encoder_copies": need.copies,
    }


def encoder_bytes(chosen: Chosen) -> int:
    """Return what the encoders hold on a GPU: model states and all activations at once."""
    held = max(len(p.microbatches) for p in chosen.filled.pipelines)
    return chosen.memory.states + held * chosen.memory.per_microbatch


def scan_report(tried: PlanScan) -> dict[str, object]:
    """Return the plans and the language model's step, as JSON."""
    best = tried.best
    return {
        "best": chosen_report(best),
        "llm_only_seconds": _alone_ns(best) / 1e9,
        "encoder_collective_seconds": (best.host.gaps.step_ns - _alone_ns(best)) / 1e9,
        "note": best.filled.note,
        "plans": [chosen_report(chosen) for chosen in tried.chosen],
        "refused": {str(plan): why for plan, why in tried.refused},
        "skipped": tried.skipped,
    }


def _alone_ns(best: Chosen) -> int:
    """Return the language model's own step, without the encoders' collectives beside it."""
    return best.host.gaps.step_ns - best.host.encoder_ns


def summary(best: Chosen) -> list[str]:
    """Return where the step's time is, and the memory."""
    step = best.host.gaps.step_ns
    shares = _mean_shares(best)
    kinds = {
        "for data-parallel collectives": shares["gather_ns"] + shares["scatter_ns"],
        "between passes": shares["warmup_ns"] + shares["steady_ns"] + shares["cooldown_ns"],
        "in tensor-parallel collectives inside passes": shares["tensor_ns"],
    }
    parts = ", ".join(f"{share:.1%} {words}" for words, share in kinds.items())
    beside = best.host.encoder_ns
    encoders = f", of which the encoders' collectives are {beside / 1e9:.3f} s" if beside else ""
    timeline = best.host.timeline
    need = best.memory
    return [
        f"The language model's GPUs do not compute for {sum(kinds.values()):.1%} of its step of "
        f"{step / 1e9:.3f} s{encoders}: {parts} "
        f"(what pictures call bubble is {timeline.bubble_ratio:.1%}, "
        "the part between passes).",
        f"Memory: {format_memory(need.model)} without encoders, "
        f"{format_memory(need.model + encoder_bytes(best))} with them; their copies add "
        f"{need.copies:.1%} of the model states.",
    ]


def _mean_shares(best: Chosen) -> dict[str, float]:
    """Return the mean share of the step by cause."""
    rows = bubble_causes(best.host.gaps, best.host.timeline)
    whole = best.host.gaps.step_ns * len(rows)
    return {cause: sum(row[cause] for row in rows) / whole for cause in rows[0]}


def bubble_table(best: Chosen) -> Table:
    """Return each rank's time without computation by cause, and the mean share of the step."""
    title = f"Bubbles of the language model's step, {best.host.gaps.step_ns / 1e9:.3f} s (ms)"
    causes = ("all-gather", "warm-up", "steady", "tensor", "cool-down", "reduce-scatter")
    table = make_table(title, "rank", *causes)
    for rank, causes_ns in enumerate(bubble_causes(best.host.gaps, best.host.timeline)):
        table.add_row(str(rank), *(f"{ns / 1e6:.0f}" for ns in causes_ns.values()))
    shares = _mean_shares(best).values()
    table.add_row("mean", *(f"{share:.1%}" for share in shares), style="bold")
    return table


def plan_table(tried: PlanScan) -> Table:
    """Return the best plans, a line each."""
    columns = ("again", "warm-up", "pieces", "hidden", "step", "memory", "copies")
    table = make_table("Encoder plans, shortest step first", "PP, TP", *columns)
    for chosen in tried.chosen[:SHOWN]:
        plan = chosen.plan
        cut = f"{chosen.splitting.longest_ns / 1e3:.0f} us" if chosen.splitting else "whole"
        table.add_row(
            f"{plan.stages}, {plan.tensor}", "yes" if plan.recompute else "no", plan.warmup, cut,
            f"{chosen.filled.efficiency:.1%}", f"{chosen.filled.step_ns / 1e9:.3f} s",
            format_memory(chosen.memory.model + encoder_bytes(chosen)),
            f"{chosen.memory.copies:.0%}",
        )  # fmt: skip
    notes = [f"{tried.skipped} more plans could not be better"] if tried.skipped else []
    notes += [f"{len(tried.refused)} do not fit, or copy too much"] if tried.refused else []
    table.caption = "; ".join(notes)
    return table
