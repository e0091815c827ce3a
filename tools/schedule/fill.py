"""`counterpoise schedule fill`: hide the encoders' work in a language model's bubbles."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from ...sched.bubble_filling.choose import Chosen, PlanScan, fitting, scan
from ...sched.bubble_filling.encoder_plans import EncoderPlan, Host, host_step, plans
from ...sched.bubble_filling.filled_program import fill_program
from ...sched.bubble_filling.presets import (
    CASES,
    case_setup,
    model_setup,
    with_encoder_collectives,
)
from ...sched.bubble_filling.setup import FillSetup, Splitting, dump_setup, load_setup
from ...sched.bubble_filling.timeline import bubble_causes, fill_timeline
from ...sched.bubble_filling.trace import read_trace
from ...sched.ir.program import format_program
from ...sched.render.summary import format_memory
from ...sched.shapes import Device, ParallelLayout, read_device, read_model
from ...sched.simulation.cost_profile import load_profile
from ..console.reporting import emit, make_table, progress_console
from ..inputs.files import parse_text
from ..inputs.models import amounts_of, device_option, model_option, size_option
from ..inputs.programs import check_sizes
from .compare import draw

SHOWN = 8
COUNT = click.IntRange(min=1)
# Optimus' copies of encoders took "less than 12 %" of memory in addition (section 4.5).
MOST_COPIES = 0.12


@dataclass(frozen=True, slots=True)
class FillOptions:
    """The options that change the job or limit the plans; None leaves a choice open."""

    contention: Path | None
    trace: Path | None
    microbatches: int | None
    pp_enc: int | None
    tp_enc: int | None
    warmup: str | None
    whole: bool
    frozen: bool
    fixed: bool
    costs: tuple[int, ...]
    guard: int
    slack: float
    encoder_collectives: bool
    encoder_memory: float | None
    executable: bool
    pieces: int


@click.command("fill")
@click.option("--case", type=click.Choice(list(CASES)), help="A job of the paper.  [3072]")
@click.option("--profile", type=click.Path(path_type=Path), help="A measured job (JSON) instead.")
@model_option()
@device_option()
@size_option("--tp", "With --model: tensor-parallel GPUs of a stage.")
@size_option("--pp", "With --model: pipeline ranks of the language model.")
@size_option("--dp", "With --model: replicas.")
@size_option("--vpp", "With --model: chunks a rank.")
@click.option("--tiles", type=COUNT, help="With --model: of a microbatch.  [the model's]")
@click.option("--tokens", type=COUNT, help="With --model: of a microbatch.  [the model's]")
@click.option("--recompute", is_flag=True, help="With --model: all layers of it.")
@click.option(
    "--contention", type=click.Path(path_type=Path), help="Its table in a cost profile (JSON)."
)
@click.option("--trace", type=click.Path(path_type=Path), help="A measured step (Chrome trace).")
@click.option("--microbatches", type=COUNT, help="Change the number of microbatches.")
@click.option(
    "--tp-chunks",
    default=1,
    show_default=True,
    type=COUNT,
    help="Chunks in which a case's tensor-parallel collectives run beside their products.",
)
@click.option("--pp-enc", type=COUNT, help="Only encoder pipelines of this number of ranks.")
@click.option(
    "--tp-enc", type=COUNT, help="Only encoders over this number of tensor-parallel GPUs."
)
@click.option("--warmup", type=click.Choice(["megatron", "reduced"]), help="Only this warm-up.")
@click.option("--whole", is_flag=True, help="Keep kernels whole.")
@click.option("--frozen", is_flag=True, help="Do not train the encoders: no backward.")
@click.option("--fixed", is_flag=True, help="Keep the order of the microbatches.")
@click.option("--cost", "costs", multiple=True, type=int, help="Permille, one for each microbatch.")
@click.option("--guard", default=0, show_default=True, help="Percent of each bubble left free.")
@click.option("--slack", default=0.0, show_default=True, help="Milliseconds before each need.")
@click.option(
    "--encoder-collectives/--no-encoder-collectives",
    default=True,
    help="Count the encoders' own, by default at 45 GB/s.",
)
@click.option(
    "--encoder-memory",
    type=click.FloatRange(min=0),
    help="Share of the model states that copies of the encoders may add.  "
    f"[{MOST_COPIES}; any for a plan named in full]",
)
@click.option(
    "--executable", is_flag=True, help="Only whole layers between passes, as the runtime runs any."
)
@click.option(
    "--pieces", default=1, show_default=True, type=COUNT, help="Of a layer, with --executable."
)
@click.option("--out", type=click.Path(path_type=Path), help=".svg, .html, .json (trace) or .txt.")
@click.option("--dump-profile", is_flag=True, help="Print the job as JSON, to edit, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def command(
    case: str | None, profile: Path | None, out: Path | None, dump_profile: bool, as_json: bool,
    tp_chunks: int, model: str | None, device: str, tp: int, pp: int, dp: int, vpp: int,
    tiles: int | None, tokens: int | None, recompute: bool, **given: Any,
) -> None:  # fmt: skip
    """Fill a language model's bubbles with its encoders' kernels, and choose the encoders' plan.

    The job is one of the Optimus paper's with the constants of set R (--case), a model of your own
    on a device (--model), or a measured one (--profile).

    Example: counterpoise schedule fill --case 3072 --pp-enc 2 --tp-enc 8
    """
    options = FillOptions(**given)
    if not 0 <= options.slack <= 10**6:
        raise ValueError(f"--slack {options.slack}: give milliseconds from 0 to a million")
    if options.executable and options.trace is not None:
        raise ValueError("--executable plans simulated steps; leave out --trace")
    if out is not None and options.trace is not None:
        raise ValueError("--out draws simulated steps; leave out --trace, or --out")
    if profile and tp_chunks != 1:
        raise ValueError("--tp-chunks is for a case; a profile has what its collectives took")
    if len([one for one in (case, profile, model) if one]) > 1:
        raise ValueError("give one of --case, --profile and --model")
    found_device = read_device(device) if model else None
    if profile:
        setup = parse_text(profile, load_setup)
    elif model and found_device:
        layout = ParallelLayout(
            tp=tp, pp=pp, dp=dp, vpp=vpp, microbatches=options.microbatches or 32,
            recompute="all" if recompute else "none",
        )  # fmt: skip
        read = read_model(model)
        setup = model_setup(read, found_device, layout, amounts_of(read, tiles, tokens), tp_chunks)
    else:
        setup = case_setup(case or "3072", chunks=tp_chunks)
    setup = _changed(setup, options, found_device)
    if dump_profile:
        click.echo(dump_setup(setup))
        return
    found = _scan(setup, options)
    best = found.best
    if out is not None:
        out.write_text(_picture(best, out), "utf-8")
        progress_console.print(f"wrote {out}")
    tables = _bubble_table(best, options.trace is None), _plan_table(found)
    report = {**_report(found), "contention": asdict(setup.contention)}
    lines = [*_summary(best, options.trace is None), best.filled.note]
    lines.append(f"Contention of encoders' kernels: {setup.contention}.")
    if options.executable:
        # Filling kernels inside passes too hides more.
        finer = _scan(setup, replace(options, executable=False)).best
        report["kernel_level"] = chosen_report(finer)
        lines.append(
            f"Kernels inside passes, for which a model's modules offer points, would hide "
            f"{finer.filled.efficiency:.1%} instead of {best.filled.efficiency:.1%} (simulated)."
        )
    emit(report, as_json, *tables)
    for line in filter(None, () if as_json else lines):
        click.echo(line)


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
        "upper_bound": chosen.filled.bound,
        "step_seconds": chosen.filled.step_ns / 1e9,
        "exposed_seconds": [chosen.filled.before_ns / 1e9, chosen.filled.after_ns / 1e9],
        "memory_gb": (need.model + _encoder_bytes(chosen)) / 1e9,
        "encoder_copies": need.copies,
    }


def _encoder_bytes(chosen: Chosen) -> int:
    """Return what the encoders hold on a GPU: model states and all activations at once."""
    held = max(len(p.microbatches) for p in chosen.filled.pipelines)
    return chosen.memory.states + held * chosen.memory.per_microbatch


def _changed(setup: FillSetup, options: FillOptions, device: Device | None) -> FillSetup:
    """Return the job with the changes that the options ask for."""
    if options.contention is not None:
        measured = parse_text(options.contention, load_profile).contention
        setup = replace(setup, contention=measured)
    if options.microbatches is not None:
        setup = replace(setup, microbatches=options.microbatches)
    check_sizes(stages=setup.stages, microbatches=setup.microbatches, chunks=setup.chunks)
    if options.frozen:
        encoders = {
            width: tuple(replace(stack, trainable=False) for stack in row)
            for width, row in setup.encoders.items()
        }
        setup = replace(setup, encoders=encoders)
    if options.encoder_collectives:
        return with_encoder_collectives(setup, device)
    return replace(setup, encoder_gather_ns=0, encoder_scatter_ns=0)


def _scan(setup: FillSetup, options: FillOptions) -> PlanScan:
    """Fill the plans asked for, in the ways asked for."""
    wanted = _wanted(setup, options.pp_enc, options.tp_enc, options.warmup)
    how: tuple[Splitting | None, ...] = (None,) if options.whole else (None, *fitting(setup))
    guard = options.guard, round(options.slack * 1e6)
    named = options.pp_enc is not None and options.tp_enc is not None
    most = options.encoder_memory
    filled = partial(
        scan,
        setup,
        guard=guard,
        permille=options.costs or None,
        fixed=options.fixed,
        most_copies=most if most is not None else math.inf if named else MOST_COPIES,
    )
    if options.trace is not None:
        measured = _traced(setup, options.trace)
        # The warm-up is part of what was measured, so each plan is filled once.
        once = [plan for plan in wanted if plan.warmup == wanted[0].warmup]
        return filled(candidates=once, splittings=how, host_of=lambda _: measured, prune=False)
    if options.executable:
        whole = partial(host_step, setup, whole_passes=True)
        return filled(
            candidates=wanted,
            splittings=how[:1],
            host_of=whole,
            prune=False,
            layer_pieces=options.pieces,
        )
    return filled(candidates=wanted, splittings=how, prune=not any(guard))


def _wanted(
    setup: FillSetup, stages: int | None, tensor: int | None, warmup: str | None
) -> Sequence[EncoderPlan]:
    """Return the plans asked for; one that does not divide is kept, to be rejected later."""
    # A plan that was named in full is tried, even if `plans` would not propose it.
    if stages is not None and tensor is not None:
        warmups = [warmup] if warmup else ["megatron", "reduced"]
        return [EncoderPlan(stages, tensor, how, one) for one in warmups for how in (True, False)]
    if stages is not None and setup.stages % stages:
        return [EncoderPlan(stages, setup.tensor, True, warmup or "megatron")]
    return [
        plan
        for plan in plans(setup)
        if stages in (None, plan.stages)
        and tensor in (None, plan.tensor)
        and warmup in (None, plan.warmup)
    ]


def _traced(setup: FillSetup, trace: Path) -> Host:
    """Return the host with a measured step's gaps; the encoders' kernels come from the profile."""
    gaps = parse_text(trace, read_trace)
    if len(gaps.ranks) != setup.stages or len(gaps.need_ns) != setup.microbatches:
        raise ValueError(
            f"{trace} has {len(gaps.ranks)} devices and {len(gaps.need_ns)} microbatches, the "
            f"profile {setup.stages} and {setup.microbatches}; trace one pipeline of this job"
        )
    return replace(host_step(setup), gaps=gaps)


def _picture(best: Chosen, out: Path) -> str:
    both = [best.host.timeline, fill_timeline(best.host, best.filled, _encoder_bytes(best))]
    title = "Encoder work in the language model's bubbles"
    if text := draw(out.suffix, both, title, " ".join(_summary(best, True))):
        return text
    if out.suffix == ".txt":
        return format_program(fill_program(best.host, best.filled)) + "\n"
    raise ValueError(f"--out got {out}; end it in .svg, .html, .json or .txt")


def _report(found: PlanScan) -> dict[str, object]:
    best = found.best
    return {
        "best": chosen_report(best),
        "llm_only_seconds": _alone_ns(best) / 1e9,
        "encoder_collective_seconds": (best.host.gaps.step_ns - _alone_ns(best)) / 1e9,
        "order": best.filled.order,
        "note": best.filled.note,
        "plans": [chosen_report(one) for one in found.chosen],
        "refused": {str(one.plan): one.why for one in found.refused},
        "skipped": found.skipped,
    }


def _alone_ns(best: Chosen) -> int:
    """Return the language model's own step, without the encoders' collectives beside it."""
    return best.host.gaps.step_ns - best.host.encoder_ns


def _summary(best: Chosen, simulated: bool) -> list[str]:
    """Return what the terminal and the page both say: where the step's time is, and the memory."""
    step = best.host.gaps.step_ns
    shares = _mean_shares(best, simulated)
    kinds = {
        "for data-parallel collectives": shares["gather_ns"] + shares["scatter_ns"],
        "between passes": shares["warmup_ns"] + shares["steady_ns"] + shares["cooldown_ns"],
        "in tensor-parallel collectives inside passes": shares["tensor_ns"],
    }
    parts = ", ".join(f"{share:.1%} {words}" for words, share in kinds.items())
    beside = best.host.encoder_ns
    own = f", of which the encoders' collectives are {beside / 1e9:.3f} s" if beside else ""
    timeline = best.host.timeline
    need = best.memory
    return [
        f"The language model's GPUs do not compute for {sum(kinds.values()):.1%} of its step of "
        f"{step / 1e9:.3f} s{own}: {parts} (what pages call bubble is {timeline.bubble_ratio:.1%}, "
        "the part between passes).",
        f"Memory: {format_memory(need.model)} without encoders, "
        f"{format_memory(need.model + _encoder_bytes(best))} with them; their copies add "
        f"{need.copies:.1%} of the model states.",
    ]


def _mean_shares(best: Chosen, simulated: bool) -> dict[str, float]:
    """Return the mean share of the step by cause."""
    host = best.host
    rows = list(map(asdict, bubble_causes(host.gaps, host.timeline if simulated else None)))
    whole = host.gaps.step_ns * len(rows)
    return {cause: sum(row[cause] for row in rows) / whole for cause in rows[0]}


def _bubble_table(best: Chosen, simulated: bool) -> Table:
    host = best.host
    title = f"Bubbles of the language model's step, {host.gaps.step_ns / 1e9:.3f} s (ms)"
    causes = ("all-gather", "warm-up", "steady", "tensor", "cool-down", "reduce-scatter")
    table = make_table(title, "rank", *causes)
    for rank, one in enumerate(bubble_causes(host.gaps, host.timeline if simulated else None)):
        table.add_row(str(rank), *(f"{ns / 1e6:.0f}" for ns in asdict(one).values()))
    shares = _mean_shares(best, simulated).values()
    table.add_row("mean", *(f"{share:.1%}" for share in shares), style="bold")
    return table


def _plan_table(found: PlanScan) -> Table:
    columns = ("again", "warm-up", "pieces", "hidden", "bound", "step", "memory", "copies")
    table = make_table("Encoder plans, shortest step first", "PP, TP", *columns)
    for one in found.chosen[:SHOWN]:
        plan = one.plan
        cut = f"{one.splitting.longest_ns / 1e3:.0f} us" if one.splitting else "whole"
        table.add_row(
            f"{plan.stages}, {plan.tensor}",
            "yes" if plan.recompute else "no",
            plan.warmup,
            cut,
            f"{one.filled.efficiency:.1%}",
            f"{one.filled.bound:.1%}",
            f"{one.filled.step_ns / 1e9:.3f} s",
            format_memory(one.memory.model + _encoder_bytes(one)),
            f"{one.memory.copies:.0%}",
        )
    notes = [f"{found.skipped} more plans could not be better"] if found.skipped else []
    notes += [f"{len(found.refused)} do not fit, or copy too much"] if found.refused else []
    table.caption = "; ".join(notes)
    return table
