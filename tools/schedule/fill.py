"""`counterpoise schedule fill`: hide the encoders' work in a language model's bubbles."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from ...sched.bubble_filling.choose import Chosen, PlanScan, fitting, scan, shared_hosts
from ...sched.bubble_filling.encoder_plans import EncoderPlan, Host, host_step, plans
from ...sched.bubble_filling.filled_program import fill_program
from ...sched.bubble_filling.own_plans import OwnPlans, scan_each
from ...sched.bubble_filling.presets import (
    CASES,
    SET_R_DEVICE,
    case_setup,
    model_setup,
    with_encoder_collectives,
)
from ...sched.bubble_filling.setup import FillSetup, Splitting, dump_setup, load_setup
from ...sched.bubble_filling.timeline import fill_timeline
from ...sched.bubble_filling.trace import read_trace
from ...sched.ir.program import format_program
from ...sched.shapes import Device, ParallelLayout, read_device, read_model
from ...sched.simulation.cost_profile import load_profile
from ..console.reporting import emit, progress_console
from ..inputs.files import parse_text
from ..inputs.models import (
    amounts_of,
    device_option,
    memory_limit,
    model_option,
    size_option,
)
from ..inputs.programs import check_sizes
from .compare import draw
from .fill_report import (
    bubble_table,
    chosen_report,
    encoder_bytes,
    own_report,
    own_words,
    plan_table,
    scan_report,
    summary,
)

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
@click.option("--memory-gb", type=float, help="GB of a GPU.  [92 % of it; of a case, 80]")
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
    tiles: int | None, tokens: int | None, recompute: bool,
    memory_gb: float | None, **given: Any,
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
    if memory_gb is not None or found_device:
        setup = replace(setup, memory_bytes=memory_limit(memory_gb, found_device or SET_R_DEVICE))
    setup = _changed(setup, options, found_device)
    if dump_profile:
        click.echo(dump_setup(setup))
        return
    found = _scan(setup, options)
    best = found.best
    own = _own_plans(setup, options, best)
    if out is not None:
        out.write_text(_picture(best, own, out), "utf-8")
        progress_console.print(f"wrote {out}")
    tables = bubble_table(best, options.trace is None), plan_table(found)
    report = {**scan_report(found), "contention": asdict(setup.contention)}
    report["own_plans"] = own_report(setup, own) if own else None
    lines = [*summary(best, options.trace is None), best.filled.note]
    if own:
        lines.append(own_words(setup, own, best))
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
        return filled(
            candidates=wanted,
            splittings=how[:1],
            host_of=shared_hosts(setup, whole_passes=True),
            prune=False,
            layer_pieces=options.pieces,
        )
    return filled(candidates=wanted, splittings=how, prune=not any(guard))


def _own_plans(setup: FillSetup, options: FillOptions, best: Chosen) -> OwnPlans | None:
    """Return plans of the encoders' own where they are better; only with nothing else asked for."""
    asked = (options.pp_enc, options.tp_enc, options.warmup, options.trace, options.costs)
    others = (options.executable, options.fixed, options.guard, options.slack)
    if len(setup.encoder_stacks(setup.tensor)) < 2 or any(asked) or any(others):
        return None
    how: tuple[Splitting | None, ...] = (None,) if options.whole else (None, *fitting(setup))
    most = MOST_COPIES if options.encoder_memory is None else options.encoder_memory
    return scan_each(setup, best.filled.step_ns, splittings=how, most_copies=most)


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


def _picture(best: Chosen, own: OwnPlans | None, out: Path) -> str:
    both = [best.host.timeline, fill_timeline(best.host, best.filled, encoder_bytes(best))]
    if own:
        drawn = best.host.timeline
        for one in own.parts:
            drawn = fill_timeline(replace(one.host, timeline=drawn), one.filled, encoder_bytes(one))
        both.append(replace(drawn, name=f"{best.host.timeline.name}, own plans"))
    title = "Encoder work in the language model's bubbles"
    if text := draw(out.suffix, both, title, " ".join(summary(best, True))):
        return text
    if out.suffix == ".txt":
        return format_program(fill_program(best.host, best.filled)) + "\n"
    raise ValueError(f"--out got {out}; end it in .svg, .html, .json or .txt")
