"""A timeline as text, to scale: a line per rank, a column per tick.

    1f1b  27 ms, bubble 27.3 %, peak 4 activations
            0     5 ms        10 ms
    rank 0  F0 F1 F2 F3 .. .. .. .. .. .. B0 B0 ...

A pass fills its ticks with its name, idle ticks are dots. Where no tick divides all times, the
middle of a column decides what stands in it, so a pass shorter than a tick may not be seen.
"""

from bisect import bisect_right
from collections.abc import Iterator
from math import gcd

from .picture import Row, chunks, label, nice_step, rows
from .summary import BYTES, Unit, figures, format_time
from .timeline import Timeline

EXACT_TICKS = 160
COARSE_TICKS = 100
PLAIN = ""
Cell = tuple[str, str]


def render_text(timeline: Timeline, tick_ns: int | None = None, unit: Unit = BYTES) -> str:
    """Return the timeline as text. Raises ValueError for a tick below 1 ns.

    `tick_ns`: what a column stands for, by default what `choose_tick` says.
    `unit`: what the timeline's memory counts.
    """
    lines = text_lines(timeline, tick_ns, unit)
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def text_lines(
    timeline: Timeline, tick_ns: int | None = None, unit: Unit = BYTES
) -> list[list[Cell]]:
    """Return the lines of `render_text` in pieces, each with the kind of pass it stands for.

    What stands for no pass has the kind PLAIN.
    """
    tick = choose_tick(timeline) if tick_ns is None else tick_ns
    if tick < 1:
        raise ValueError(f"a tick of {tick} ns shows nothing; give 1 or more")
    count = -(-timeline.makespan_ns // tick)
    long = chunks(timeline) > 1
    grid = [(row.label, _cells(row, tick, count, long)) for row in rows(timeline)]
    width = max((len(text) for _, cells in grid for text, _ in cells), default=1)
    head = max((len(name) for name, _ in grid), default=0) + 2
    lines = [[(f"{timeline.name}  {', '.join(figures(timeline, unit))}", PLAIN)]]
    lines.append([(" " * head + _axis(tick, width + 1, count), PLAIN)])
    for name, cells in grid:
        padded = [(text.ljust(width), kind) for text, kind in cells]
        lines.append([(name.ljust(head), PLAIN), *_spaced(padded)])
    return lines


def _spaced(cells: list[Cell]) -> Iterator[Cell]:
    """Cells with gaps between them; within a pass the gap is the pass's."""
    before: Cell = ("", PLAIN)
    for cell in cells:
        if before[0]:
            yield " ", cell[1] if cell == before else PLAIN
        yield cell
        before = cell


def choose_tick(timeline: Timeline) -> int:
    """Return the tick that `render_text` takes by default, in nanoseconds.

    The longest time that divides all starts and ends, or where that makes more than EXACT_TICKS
    columns, a COARSE_TICKS-th of the makespan.
    """
    slots = (slot for row in rows(timeline) for slot in row.slots)
    exact = gcd(*(time for slot in slots for time in (slot.start_ns, slot.end_ns)))
    if exact and timeline.makespan_ns <= exact * EXACT_TICKS:
        return exact
    return max(1, timeline.makespan_ns // COARSE_TICKS)


def _cells(row: Row, tick_ns: int, count: int, long: bool) -> list[Cell]:
    slots = [slot for slot in row.slots if slot.end_ns > slot.start_ns]
    starts = [slot.start_ns for slot in slots]
    cells: list[Cell] = []
    for tick in range(count):
        middle = tick * tick_ns + tick_ns // 2
        place = bisect_right(starts, middle) - 1
        if place < 0 or slots[place].end_ns <= middle:
            cells.append(("..", PLAIN))
        else:
            what = slots[place]
            cells.append((label(what, bare=row.lane or not long), what.what.kind))
    return cells


def _axis(tick_ns: int, column: int, count: int) -> str:
    """The time axis: a mark at every round time, where there is room for its words."""
    step = nice_step(tick_ns * max(1, 12 // column))
    line = ""
    for time in range(0, tick_ns * count + 1, step):
        place = time * column // tick_ns
        if place >= len(line) + bool(line):
            line = line.ljust(place) + (format_time(time) if time else "0")
    return line
