"""Draw a timeline as text, to scale, with a line per rank.

Every character is an equal piece of time. A pass is its name followed by dashes, as far as there is
room, idle time is dots, and a pass shorter than a character may be invisible:

    rank 0  F0-F1-F2-F3-..................B0---- ...

If there is room, all names are whole: the longest time that divides all starts and ends is then as
wide as the longest name.
"""

from collections.abc import Iterator
from math import gcd

from ..simulation.timeline import Timeline
from .picture import Row, chunks, label, nice_step, rows
from .summary import BYTES, MemoryUnit, figures, format_time

# Pieces of time up to which names are whole, and the width of a timeline with more.
MOST_TICKS, COLUMNS = 160, 120
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
    alone = chunks(timeline) == 1
    names = [[label(slot, bare=row.lane or alone) for slot in row.slots] for row in drawn]
    width = max((len(name) for row in names for name in row), default=1) + 1
    count = timeline.makespan_ns // _tick(timeline)
    # Unequal times have a tiny common divisor, with which the timeline would be far too wide.
    is_short = span_ns is None and count <= MOST_TICKS
    room = width * count if is_short else COLUMNS
    if columns is not None:
        room = min(room, columns - head) if is_short else columns - head
        if columns <= head:
            raise ValueError(f"{columns} columns are too few to draw in; give {head + 20} or more")
    whole = max(1, span_ns or timeline.makespan_ns)
    lines = [[(f"{timeline.name}  {', '.join(figures(timeline, unit))}", PLAIN)]]
    lines.append([(" " * head + _axis(timeline.makespan_ns, room, whole), PLAIN)])
    for row, words in zip(drawn, names, strict=True):
        cells = _cells(row, words, room, whole, timeline.makespan_ns)
        lines.append([(row.label.ljust(head), PLAIN), *cells])
    return lines


def _tick(timeline: Timeline) -> int:
    slots = (slot for row in rows(timeline) for slot in row.slots)
    return gcd(*(time for slot in slots for time in (slot.start_ns, slot.end_ns))) or 1


def _cells(row: Row, words: list[str], room: int, whole: int, makespan_ns: int) -> Iterator[Cell]:
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
    for time in range(0, makespan_ns + 1, nice_step(12 * every_ns / max(1, columns))):
        line = line.ljust(time * columns // every_ns) + (format_time(time) if time else "0")
    return line
