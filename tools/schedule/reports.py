"""Make what the schedule commands print: JSON reports, tables, and timelines in colour."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from ...sched import Schedule, Timeline
from ...sched.render.palette import ink, paint
from ...sched.render.picture import kind_names
from ...sched.render.summary import (
    CAUSES,
    MemoryUnit,
    bubble_words,
    format_memory,
    format_time,
    peak,
)
from ...sched.render.text import text_lines


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
        f"peak_{unit.word}": peak(timeline).bytes / unit.size,
        f"peak_{unit.word}_by_rank": [most / unit.size for most in timeline.peak_bytes],
        "critical_path": [str(slot.what) for slot in timeline.critical],
    }


def list_table(found: Sequence[Schedule]) -> Table:
    """Return the registered schedules as a table."""
    table = Table("schedule", "description", "options", box=None, pad_edge=False)
    for one in found:
        table.add_row(one.name, one.description, ", ".join(one.options))
    return table


def rank_table(timeline: Timeline, unit: MemoryUnit) -> Table:
    """Return a table of each rank's time by cause and its peak memory."""
    title = f"{timeline.name}: {format_time(timeline.makespan_ns)}, "
    title += f"{100 * timeline.bubble_ratio:.1f} % bubble; peak in {unit.word}"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("rank")
    for name in (*CAUSES[:-1], "transfer", "bubble", "peak"):
        table.add_column(name, justify="right")
    rows = zip(
        timeline.work_ns,
        timeline.bubbles,
        timeline.bubble_ratios,
        timeline.peak_bytes,
        strict=True,
    )
    for rank, (work, idle, ratio, most) in enumerate(rows):
        times = (format_time(ns) if ns else "-" for ns in (work, *bubble_words(idle).values()))
        held = format_memory(most, unit)
        held = held if unit.word == "bytes" else held.split()[0]
        table.add_row(str(rank), *times, f"{100 * ratio:.1f} %", held)
    return table


def compare_table(timelines: Sequence[Timeline], unit: MemoryUnit) -> Table:
    """Return a table of key figures, a line for each timeline."""
    table = Table(box=None, pad_edge=False)
    table.add_column("schedule")
    for name in ("makespan", "against first", "bubble", "peak"):
        table.add_column(name, justify="right")
    for one in timelines:
        table.add_row(
            one.name,
            format_time(one.makespan_ns),
            f"{timelines[0].makespan_ns / max(1, one.makespan_ns):.2f}x",
            f"{100 * one.bubble_ratio:.1f} %",
            # A measured step may say nothing of memory.
            format_memory(peak(one).bytes, unit) if peak(one).bytes else "-",
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
            drawn.append(text, _style(kind, names))
        drawn.append("\n")
    drawn.rstrip()
    return drawn


def _style(kind: str, names: tuple[str, ...]) -> str:
    if not kind:
        return ""
    fill = paint(kind, names).fill
    return f"{ink(fill)} on {fill}"
