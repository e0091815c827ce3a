"""A timeline as text, to scale: a line per rank.

Where there is room, a column for each tick, the longest time that divides all starts and ends; a
pass fills its ticks with its name, idle ticks are dots:

    rank 0  F0 F1 F2 F3 .. .. .. .. .. .. B0 B0 ...

Else a character for each piece of time; a pass is its name and a line, as far as there is room:

    rank 0  F0-F1-F2-F3-..................B0---- ...

There a pass shorter than a character may not be seen.
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


def render_text(timeline: Timeline, columns: int | None = None, unit: MemoryUnit = BYTES) -> str:
    """Return the timeline as text. Raises ValueError if there is no room for anything.

    `columns`: how wide it may be; by default as wide as it wants, within reason.
    `unit`: what the timeline's memory counts.
    """
    lines = text_lines(timeline, columns, unit)
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def text_lines(
    timeline: Timeline, columns: int | None = None, unit: MemoryUnit = BYTES
) -> list[list[Cell]]:
    """Return the lines of `render_text` in pieces, each with the kind of pass it stands for.

    What stands for no pass has the kind PLAIN.
    """
    drawn = rows(timeline)
    head = max((len(row.label) for row in drawn), default=0) + 2
    room = DENSE_COLUMNS if columns is None else columns - head
    if room < 1:
        raise ValueError(f"{columns} columns are too few to draw in; give {head + 20} or more")
    tick = _tick(timeline)
    names = [[label(slot, bare=_bare(row, timeline)) for slot in row.slots] for row in drawn]
    width = max((len(name) for row in names for name in row), default=1) + 1
    count = timeline.makespan_ns // tick
    grid = count <= GRID_TICKS and (columns is None or count * width <= room + 1)
    scale = (width, tick) if grid else (room, max(1, timeline.makespan_ns))
    lines = [[(f"{timeline.name}  {', '.join(figures(timeline, unit))}", PLAIN)]]
    lines.append([(" " * head + _axis(timeline.makespan_ns, *scale), PLAIN)])
    for row, words in zip(drawn, names, strict=True):
        cells = _ticks(row, words, tick, count, width) if grid else _dense(row, words, *scale)
        lines.append([(row.label.ljust(head), PLAIN), *cells])
    return lines


def _tick(timeline: Timeline) -> int:
    slots = (slot for row in rows(timeline) for slot in row.slots)
    return gcd(*(time for slot in slots for time in (slot.start_ns, slot.end_ns))) or 1


def _bare(row: Row, timeline: Timeline) -> bool:
    return row.lane or chunks(timeline) == 1


def _ticks(row: Row, words: list[str], tick: int, count: int, width: int) -> Iterator[Cell]:
    """A row of the grid: each tick the name of its pass, or dots."""
    at = 0
    for slot, name in zip(row.slots, words, strict=True):
        first, last = slot.start_ns // tick, slot.end_ns // tick
        if last > first:
            yield "..".ljust(width) * (first - at), PLAIN
            yield (name.ljust(width) * (last - first))[:-1], slot.what.kind
            yield " " * (last < count), PLAIN
            at = last
    yield ("..".ljust(width) * (count - at)).rstrip(), PLAIN


def _dense(row: Row, words: list[str], room: int, whole: int) -> Iterator[Cell]:
    """A row of characters: each pass its name and a line, or as much of it as there is room for."""
    at = 0
    for slot, name in zip(row.slots, words, strict=True):
        first, last = (round(time * room / whole) for time in (slot.start_ns, slot.end_ns))
        if last > first:
            yield "." * (first - at), PLAIN
            short = name if len(name) <= last - first else slot.what.kind[: last - first]
            yield short.ljust(last - first, "-"), slot.what.kind
            at = last
    yield "." * (room - at), PLAIN


def _axis(makespan_ns: int, columns: int, every_ns: int) -> str:
    """A mark at every round time; so many columns stand for so many nanoseconds."""
    line = ""
    for time in range(0, makespan_ns + 1, nice_step(12 * every_ns / columns)):
        line = line.ljust(time * columns // every_ns) + (format_time(time) if time else "0")
    return line
