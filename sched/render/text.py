"""Draw a timeline as text, to scale, with a line per rank.

If there is room, every tick has a column; a tick is the longest time that divides all starts and
ends. A pass fills its ticks with its name, and idle ticks are dots:

    rank 0  F0 F1 F2 F3 .. .. .. .. .. .. B0 B0 ...

Otherwise every character is an equal piece of time. A pass is its name followed by dashes, as far
as there is room, and a pass shorter than a character may be invisible:

    rank 0  F0-F1-F2-F3-..................B0---- ...
"""

from collections.abc import Iterator
from math import gcd

from ..simulation.timeline import Timeline
from .picture import Row, chunks, label, nice_step, rows
from .summary import BYTES, MemoryUnit, figures, format_time

GRID_TICKS = 160
DENSE_COLUMNS = 120
PLAIN = ""
Cell = tuple[str, str]


def render_text(
    timeline: Timeline,
    columns: int | None = None,
    unit: MemoryUnit = BYTES,
    span_ns: int | None = None,
) -> str:
    """Return the timeline as text. Raises ValueError if there is no room for anything.

    `columns`: the greatest width; by default as wide as the timeline needs, within limits.
    `unit`: the unit of the timeline's memory. `span_ns`: the time that the whole width stands for,
    to draw several timelines on one scale; by default the makespan.
    """
    lines = text_lines(timeline, columns, unit, span_ns)
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def text_lines(
    timeline: Timeline,
    columns: int | None = None,
    unit: MemoryUnit = BYTES,
    span_ns: int | None = None,
) -> list[list[Cell]]:
    """Return the lines of `render_text` in pieces: (text, kind of the pass that it shows).

    Text that shows no pass has the kind PLAIN.
    """
    drawn = rows(timeline)
    head = max((len(row.label) for row in drawn), default=0) + 2
    room = DENSE_COLUMNS if columns is None else columns - head
    if room < 1:
        raise ValueError(f"{columns} columns are too few to draw in; give {head + 20} or more")
    tick = _tick(timeline)
    alone = chunks(timeline) == 1
    names = [[label(slot, bare=row.lane or alone) for slot in row.slots] for row in drawn]
    width = max((len(name) for row in names for name in row), default=1) + 1
    count = timeline.makespan_ns // tick
    # Unequal times have a tiny common divisor, so that a grid of ticks would be far too wide.
    grid = count <= GRID_TICKS and (columns is None or count * width <= room + 1)
    grid = grid and span_ns is None
    scale = (width, tick) if grid else (room, max(1, span_ns or timeline.makespan_ns))
    lines = [[(f"{timeline.name}  {', '.join(figures(timeline, unit))}", PLAIN)]]
    lines.append([(" " * head + _axis(timeline.makespan_ns, *scale), PLAIN)])
    for row, words in zip(drawn, names, strict=True):
        if grid:
            cells = _ticks(row, words, tick, count, width)
        else:
            cells = _dense(row, words, *scale, timeline.makespan_ns)
        lines.append([(row.label.ljust(head), PLAIN), *cells])
    return lines


def _tick(timeline: Timeline) -> int:
    slots = (slot for row in rows(timeline) for slot in row.slots)
    return gcd(*(time for slot in slots for time in (slot.start_ns, slot.end_ns))) or 1


def _ticks(row: Row, words: list[str], tick: int, count: int, width: int) -> Iterator[Cell]:
    """Yield a row of the grid: in each tick the name of its pass, or dots."""
    at = 0
    for slot, name in zip(row.slots, words, strict=True):
        first, last = slot.start_ns // tick, slot.end_ns // tick
        if last > first:
            yield "..".ljust(width) * (first - at), PLAIN
            yield (name.ljust(width) * (last - first))[:-1], slot.what.kind
            yield " " * (last < count), PLAIN
            at = last
    yield ("..".ljust(width) * (count - at)).rstrip(), PLAIN


def _dense(row: Row, words: list[str], room: int, whole: int, makespan_ns: int) -> Iterator[Cell]:
    """Yield a row of characters: each pass as its name and dashes, or as much of it as fits."""
    at = 0
    for slot, name in zip(row.slots, words, strict=True):
        first, last = (round(time * room / whole) for time in (slot.start_ns, slot.end_ns))
        if last > first:
            yield "." * (first - at), PLAIN
            short = name if len(name) <= last - first else slot.what.kind[: last - first]
            yield short.ljust(last - first, "-"), slot.what.kind
            at = last
    yield "." * (round(makespan_ns * room / whole) - at), PLAIN


def _axis(makespan_ns: int, columns: int, every_ns: int) -> str:
    """Return a line with a mark at every round time; `columns` columns are `every_ns` long."""
    line = ""
    for time in range(0, makespan_ns + 1, nice_step(12 * every_ns / columns)):
        line = line.ljust(time * columns // every_ns) + (format_time(time) if time else "0")
    return line
