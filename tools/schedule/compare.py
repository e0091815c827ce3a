"""`counterpoise schedule compare`, and the reports and tables that schedule commands print."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from ...sched import Schedule, Timeline
from ...sched.render.palette import choose_colour, choose_ink
from ...sched.render.picture import kind_names
from ...sched.render.summary import (
    BYTES,
    CAUSES,
    MemoryUnit,
    bubble_words,
    format_memory,
    format_time,
)
from ...sched.render.svg import render_svg
from ...sched.render.text import render_text, text_lines
from ...sched.render.trace import render_trace
from ...sched.simulation.measured import KindAgreement, agreement, differing_passes
from ..console.commands import FILE, Command, json_option
from ..console.reporting import PLAIN, emit, make_table
from ..inputs.cost_options import CostSource, is_step, read_timelines, with_costs
from ..inputs.programs import Size, with_size


def timeline_report(timeline: Timeline, unit: MemoryUnit) -> dict[str, object]:
    """Return a timeline's figures: nanoseconds, shares of time, and memory in the unit."""
    return {
        "name": timeline.name,
        "ranks": len(timeline.ranks),
        "passes": sum(map(len, timeline.ranks)),
        "makespan_ns": timeline.makespan_ns,
        "bubble": timeline.bubble_ratio,
        "bubble_by_rank": list(timeline.bubble_ratios),
        "bubbles_ns": [bubble_words(idle) for idle in timeline.bubbles],
        "work_ns": list(timeline.work_ns),
        f"peak_{unit.word}": max(timeline.peak_bytes, default=0) / unit.size,
        f"peak_{unit.word}_by_rank": [most / unit.size for most in timeline.peak_bytes],
    }


def list_table(registered: Sequence[Schedule]) -> Table:
    """Return the registered schedules as a table."""
    table = Table("schedule", "description", "options", box=None, pad_edge=False)
    for schedule in registered:
        table.add_row(schedule.name, schedule.description, ", ".join(schedule.options))
    return table


def rank_table(timeline: Timeline, unit: MemoryUnit) -> Table:
    """Return a table of each rank's time by cause and its peak memory."""
    title = f"{timeline.name}: {format_time(timeline.makespan_ns)}, "
    title += f"{100 * timeline.bubble_ratio:.1f} % bubble; peak in {unit.word}"
    table = make_table(title, "rank", *CAUSES[:-1], "transfer", "bubble", "peak", **PLAIN)
    rows = zip(
        timeline.work_ns, timeline.bubbles, timeline.bubble_ratios, timeline.peak_bytes,
        strict=True,
    )  # fmt: skip
    for rank, (work, idle, ratio, most) in enumerate(rows):
        times = (format_time(ns) if ns else "-" for ns in (work, *bubble_words(idle).values()))
        held = format_memory(most, unit)
        held = held if unit.word == "bytes" else held.split()[0]
        table.add_row(str(rank), *times, f"{100 * ratio:.1f} %", held)
    return table


def compare_table(timelines: Sequence[Timeline], unit: MemoryUnit) -> Table:
    """Return a table of key figures, a line for each timeline."""
    table = make_table(None, "schedule", "makespan", "against first", "bubble", "peak", **PLAIN)
    for timeline in timelines:
        most = max(timeline.peak_bytes, default=0)
        table.add_row(
            timeline.name,
            format_time(timeline.makespan_ns),
            f"{timelines[0].makespan_ns / max(1, timeline.makespan_ns):.2f}x",
            f"{100 * timeline.bubble_ratio:.1f} %",
            # A measured step may say nothing of memory.
            format_memory(most, unit) if most else "-",
        )
    return table


def picture(timeline: Timeline, unit: MemoryUnit, columns: int | None = None) -> Text:
    """Return the timeline to scale, coloured like the other pictures.

    `columns`: the terminal's width; None if there is no limit.
    """
    names = kind_names([timeline])
    drawn = Text()
    for line in text_lines(timeline, columns, unit):
        for text, kind in line:
            fill = choose_colour(kind, names) if kind else ""
            drawn.append(text, f"{choose_ink(fill)} on {fill}" if kind else "")
        drawn.append("\n")
    drawn.rstrip()
    return drawn


@click.command(
    "compare", cls=Command, usual=("--out", "--ranks", "--microbatches", "--costs", "--json")
)
@click.argument("targets", nargs=-1, required=True)
@click.option("--out", type=FILE, help="Write .svg, .json, .txt here.")
@with_size
@with_costs
@json_option
def compare_command(
    targets: tuple[str, ...], out: Path | None, size: Size, costs: CostSource, as_json: bool,
) -> None:  # fmt: skip
    """Compare several programs, or measured steps, in a table, and with --out in a picture.

    A measured step is a file that ends in .json; beside the program that it ran, the times of each
    kind of pass are compared too.

    Example: counterpoise schedule compare 1f1b zb-h1 zbv --ranks 8 --out picture.svg
    """
    timelines = read_timelines(targets, size, costs)
    if out is not None:
        out.write_text(_render_picture(out, timelines, costs.unit), "utf-8")
        click.echo(f"wrote {out}", err=True)
    agreements = _find_agreements(targets, timelines)
    report: dict[str, object] = {
        "schedules": [timeline_report(timeline, costs.unit) for timeline in timelines],
        "agreement": [_agreement_report(*pair) for pair in agreements],
    }
    tables = (_agreement_table(*pair) for pair in agreements)
    emit(report, as_json, compare_table(timelines, costs.unit), *tables)


def _find_agreements(
    targets: Sequence[str], timelines: Sequence[Timeline]
) -> list[tuple[Timeline, Timeline, tuple[KindAgreement, ...]]]:
    """Return (simulated, measured, agreement) of every step and the programs of the same passes."""
    named = list(zip(targets, timelines, strict=True))
    simulated = [timeline for target, timeline in named if not is_step(target)]
    measured = [timeline for target, timeline in named if is_step(target)]
    return [
        (program, step, agreement(program, step))
        for step, program in product(measured, simulated)
        if not differing_passes(program, step)
    ]


def draw(suffix: str, timelines: list[Timeline], title: str, unit: MemoryUnit = BYTES) -> str:
    """Return timelines as SVG or trace, by the suffix of the file; "" for another one."""
    if suffix == ".svg":
        return render_svg(timelines, title=title, unit=unit)
    return render_trace(timelines) + "\n" if suffix == ".json" else ""


def _render_picture(out: Path, timelines: list[Timeline], unit: MemoryUnit) -> str:
    if text := draw(out.suffix, timelines, "Pipeline schedules compared", unit):
        return text
    if out.suffix == ".txt":
        # On one time axis: what is longer is wider.
        span = max(timeline.makespan_ns for timeline in timelines)
        drawn = (render_text(timeline, unit=unit, span_ns=span) for timeline in timelines)
        return "\n\n".join(drawn) + "\n"
    raise ValueError(f"--out got {out}; end it in .svg, .txt or .json (a trace)")


def _agreement_report(
    simulated: Timeline, measured: Timeline, by_kind: Sequence[KindAgreement]
) -> dict[str, object]:
    return {
        "simulated": simulated.name,
        "measured": measured.name,
        "makespan_ratio": measured.makespan_ns / max(1, simulated.makespan_ns),
        "kinds": {times.kind: times.ratio for times in by_kind},
    }


def _agreement_table(
    simulated: Timeline, measured: Timeline, by_kind: Sequence[KindAgreement]
) -> Table:
    title = f"{measured.name}: measured by simulated time ({simulated.name})"
    table = make_table(title, "pass", "passes", "simulated", "measured", "ratio", **PLAIN)
    for kind_times in by_kind:
        total_ns = (kind_times.simulated_ns, kind_times.measured_ns)
        means = (format_time(ns // kind_times.passes) for ns in total_ns)
        table.add_row(kind_times.kind, str(kind_times.passes), *means, f"{kind_times.ratio:.2f}")
    whole = measured.makespan_ns / max(1, simulated.makespan_ns)
    times = (format_time(timeline.makespan_ns) for timeline in (simulated, measured))
    table.add_row("step", "1", *times, f"{whole:.2f}", style="bold")
    return table
