"""Draw timelines as one standalone SVG picture, light or dark as the viewer's system is.

Panels lie below each other on one time axis and one memory axis. Up to PASS_LIMIT passes, each is a
rectangle with a tooltip. Beyond that, the passes of one row and kind share a path, and in a pixel
column with several passes narrower than WIDE each kind gets a part of the column's height in
proportion to its time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil

from ..ir.kinds import is_staged
from ..ir.program import NO_MICROBATCH
from ..simulation.timeline import Curve, Slot, Timeline
from .elements import (
    Scale,
    document,
    element,
    labels_below,
    line,
    number,
    text,
    theme,
    tooltip,
    vertical_lines,
)
from .palette import edge, ink, paint, tint
from .picture import Row, chunk_of, chunks, kind_names, label, nice_step, rows, word
from .summary import BYTES, MemoryUnit, figures, format_memory, format_time, peak

LINE_HEIGHT = 22
# Each with its light and its dark value; passes that hardly differ from the paper get an edge.
_COLOURS = {
    "paper": ("#fff", "#15181c"),
    "row": ("#f3f3f0", "#1b1f24"),
    "hatch": ("#d9d9d3", "#3d444d"),
    "grid": ("#e2e3e0", "#2b3036"),
    "end": ("#2b3037", "#dfe3e8"),
    "muted": ("#626a73", "#98a0a9"),
    "ink": ("#16191d", "#eceae4"),
    "memory": ("#74b9c4", "#3f7f9c"),
    "peak": ("#1c4e80", "#a9dcf0"),
    "light": ("rgb(0 0 0/.3)", "none"),
    "dark": ("none", "rgb(255 255 255/.38)"),
}
STYLE = (
    "\n"
    + theme(_COLOURS)
    + """svg{font:11px Inter,system-ui,"Segoe UI",Helvetica,Arial,sans-serif}
svg{font-feature-settings:"tnum"}
.paper{fill:var(--paper)}.row{fill:var(--row)}
.hatch{stroke:var(--hatch)}.grid{stroke:var(--grid)}.end{stroke:var(--end)}
text{fill:var(--muted)}.ink,.name{fill:var(--ink);font-weight:600}
.name{font-size:15px}.title{font-size:20px}.in{text-anchor:middle;font-weight:550}
.line{fill:none;stroke-linejoin:round}.m{stroke:var(--memory)}
.top{stroke:var(--peak);stroke-width:2.2}.under{fill:var(--peak);fill-opacity:.07}
.halo{paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}
"""
)
PATTERNS = """<pattern id="hatch" patternUnits="userSpaceOnUse" width="6" height="6"
 patternTransform="rotate(45)"><path class="hatch" d="M0 0V6" stroke-width="1.6"/></pattern>
<pattern id="stripes" patternUnits="userSpaceOnUse" width="6" height="6"
 patternTransform="rotate(-45)"><path d="M0 0V6" stroke="#fff" stroke-opacity=".26"
 stroke-width="2.2"/></pattern>"""


def fills(names: tuple[str, ...], chunks: int) -> str:
    """Return a class for each kind and chunk (kF0), and one for the text upon it (tF0).

    >>> fills(("B",), 1)
    '.kB0{fill:#fbb02d}.tB0{fill:#101418}'
    """
    rules: list[str] = []
    for name in names:
        for chunk in range(chunks if is_staged(name) else 1):
            fill = tint(paint(name, names).fill, chunk, chunks)
            if edge(fill):
                rules.append(f".k{name}{chunk}{{stroke:var(--{edge(fill)});stroke-width:.75}}")
            rules.append(f".k{name}{chunk}{{fill:{fill}}}.t{name}{chunk}{{fill:{ink(fill)}}}")
    return "\n".join(rules)


def legend(
    names: tuple[str, ...], chunks: int, left: float, right: float, y: float
) -> tuple[str, float]:
    """Return the legend, as many lines as it needs, and the upper edge of what follows it."""
    parts: list[str] = []
    x = left
    for looks, letter, words in _entries(names, chunks):
        # Roughly: box and gap, the words at their mean width, a gap to the next entry.
        width = 27 + 6.3 * len(f"{letter} {words}") + 16
        if x > left and x + width > right:
            x, y = left, y + LINE_HEIGHT
        parts += [element("rect", **look, x=x, y=y, width=20, height=13, rx=3) for look in looks]
        strong = element("tspan", escape(letter), class_="ink")
        parts.append(element("text", f"{strong} {escape(words)}", x=x + 27, y=y + 10.5))
        x += width
    return "".join(parts), y + LINE_HEIGHT + 12


def _entries(
    names: tuple[str, ...], chunks: int
) -> Iterator[tuple[list[dict[str, str]], str, str]]:
    """Yield the attributes of each entry's boxes, one upon the other, its letter and its words."""
    for name in names:
        stripes = [{"fill": "url(#stripes)"}] if paint(name, names).striped else []
        yield [{"class_": f"k{name}0"}, *stripes], name, word(name, names)
    staged = next((name for name in names if is_staged(name)), None)
    if chunks > 1 and staged:
        yield [{"class_": f"k{staged}{chunks - 1}"}], "", "later chunk: lighter"
    yield [{"class_": "row"}, {"fill": "url(#hatch)"}], "", "bubble"


PASS_LIMIT = 6000
# Widths and heights in pixels.
GUTTER, MARGIN = 64, 24
MEMORY, LANE = 64, 12
WIDE = 1.5


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes that all panels share, and what they need to know of each other.

    `merged`: one path per row and kind instead of a rectangle per pass.
    """

    x: Scale
    memory_bytes: int
    names: tuple[str, ...]
    unit: MemoryUnit
    merged: bool
    chunks: int


@dataclass(frozen=True, slots=True)
class Strip:
    """The part of a panel that a row occupies: its upper edge and its height in pixels."""

    row: Row
    timeline: Timeline
    top: float
    height: float

    def look(self, slot: Slot) -> str:
        """Return the suffix of a pass's CSS classes: its kind and chunk."""
        return f"{slot.what.kind}{chunk_of(slot.what, self.timeline.placement)}"


def render_svg(
    timelines: Sequence[Timeline],
    *,
    title: str = "",
    unit: MemoryUnit = BYTES,
    width: int = 1200,
) -> str:
    """Return the picture, `width` pixels wide. Raises ValueError without timelines.

    `unit`: the unit of the timelines' memory.
    """
    if not timelines:
        raise ValueError("nothing to draw: got no timelines; give at least one")
    axes = _axes(timelines, unit, width)
    parts: list[str] = []
    y = float(MARGIN)
    if title:
        parts.append(text(MARGIN, y + 14, title, "name title"))
        y += 34
    drawn, y = legend(axes.names, axes.chunks, MARGIN, width - MARGIN, y)
    parts.append(drawn)
    for timeline in timelines:
        panel, y = _panel(timeline, axes, y)
        parts += panel
    height = ceil(y - 8)
    return document(
        width,
        height,
        [element("rect", class_="paper", width=width, height=height, rx=10), *parts],
        title=title or ", ".join(t.name for t in timelines),
        style=STYLE + fills(axes.names, axes.chunks),
        defs=PATTERNS,
    )


def _axes(timelines: Sequence[Timeline], unit: MemoryUnit, width: int) -> Axes:
    span_ns = max(timeline.makespan_ns for timeline in timelines)
    passes = sum(len(row.slots) for timeline in timelines for row in rows(timeline))
    return Axes(
        Scale(0, max(span_ns, 1), start=MARGIN + GUTTER, end=width - MARGIN),
        max(peak(timeline).bytes for timeline in timelines),
        kind_names(timelines),
        unit,
        passes > PASS_LIMIT,
        max(map(chunks, timelines)),
    )


def _panel(timeline: Timeline, axes: Axes, y: float) -> tuple[list[str], float]:
    """Return a panel's parts and the upper edge of the next panel."""
    most = peak(timeline)
    parts = [
        text(MARGIN, y + 14, timeline.name, "name"),
        text(axes.x.end, y + 14, ", ".join(figures(timeline, axes.unit)), "ink", anchor="end"),
    ]
    top = y + 24
    y = top
    body: list[str] = []
    for strip in _strips(timeline, top):
        body += _row(strip, axes)
        y += strip.height
    foot = y + 14 + MEMORY if most.bytes else y + 4
    parts += _grid(axes, top, foot) + body
    end = number(axes.x(timeline.makespan_ns))
    parts.append(element("path", class_="end", d=f"M{end} {top}V{y}", stroke_width=1.5))
    if most.bytes:
        parts += _memory(timeline, axes, y + 22, foot)
    return parts, foot + 36


def _strips(timeline: Timeline, top: float) -> Iterator[Strip]:
    """Yield the rows with their places; the more ranks, the lower each row."""
    pitch = 24 if len(timeline.ranks) <= 8 else 17 if len(timeline.ranks) <= 16 else 11
    for row in rows(timeline):
        height = LANE if row.lane else pitch
        yield Strip(row, timeline, top, height)
        top += height


def _grid(axes: Axes, top: float, foot: float) -> list[str]:
    times = range(0, int(axes.x.high) + 1, nice_step(axes.x.high / 10))
    words = [(time, format_time(time) if time else "0") for time in times]
    lines = element("path", class_="grid", d=vertical_lines(axes.x, times, top, foot))
    return [lines, *labels_below(axes.x, words, foot + 14)]


def _row(strip: Strip, axes: Axes) -> Iterator[str]:
    row = strip.row
    # Where rows are lower than a line of text, every other one has a label.
    if strip.height > 11 or int(row.label.split()[-1]) % 2 == 0:
        yield text(MARGIN, strip.top + strip.height / 2 + 4, row.label)
    left, right = axes.x.start, axes.x(strip.timeline.makespan_ns)
    yield _box(strip, left, right - left, class_="row")
    if not row.lane:
        yield _box(strip, left, right - left, fill="url(#hatch)")
    if axes.merged:
        yield from _merged(strip, axes)
    else:
        for slot in row.slots:
            yield _pass(slot, strip, axes)


def _box(strip: Strip, left: float, width: float, *content: str, **attributes: str | None) -> str:
    """Return a rectangle across a row, one pixel lower than the row on either side."""
    return element(
        "rect",
        *content,
        **attributes,
        x=left,
        y=strip.top + 1,
        width=width,
        height=strip.height - 2,
        rx=2,
    )


def _pass(slot: Slot, strip: Strip, axes: Axes) -> str:
    """Return a pass: a rectangle with a tooltip, stripes for some kinds, and words if they fit."""
    left, width = _extent(slot, axes)
    width = max(width, 0.4)
    look = strip.look(slot)
    times = f"{format_time(slot.start_ns)} to {format_time(slot.end_ns)}"
    title = tooltip(f"{label(slot, strip.row.lane)}, {times}")
    drawn = _box(strip, left, width, title, class_=f"k{look}")
    if paint(slot.what.kind, axes.names).striped:
        drawn += _box(strip, left, width, fill="url(#stripes)", pointer_events="none")
    if not strip.row.lane and strip.height >= 16 and (words := _words_inside(slot, width)):
        x, y = left + width / 2, strip.top + strip.height / 2 + 4
        drawn += text(x, y, words, f"in t{look}", pointer_events="none")
    return drawn


def _words_inside(slot: Slot, width: float) -> str:
    """Return the words that fit into a pass: kind and microbatch, the microbatch alone, or none."""
    microbatch = "" if slot.what.microbatch == NO_MICROBATCH else str(slot.what.microbatch)
    for words in (slot.what.kind + microbatch, microbatch):
        if width >= 4 + 7 * len(words):
            return words
    return ""


def _extent(slot: Slot, axes: Axes) -> tuple[float, float]:
    """Return a pass's left edge and width; wide ones leave a gap to their neighbours."""
    left, right = axes.x(slot.start_ns), axes.x(slot.end_ns)
    gap = 0.5 if right - left > 4 else 0.0
    return left + gap, right - left - 2 * gap


def _merged(strip: Strip, axes: Axes) -> Iterator[str]:
    """Yield one path for each kind and chunk of a row."""
    paths: dict[str, list[str]] = {}
    # The width that each kind has in a pixel column.
    columns: dict[int, dict[str, float]] = {}
    for slot in strip.row.slots:
        x, width = _extent(slot, axes)
        if width >= WIDE:
            path = _box_path(x, strip.top + 1, width, strip.height - 2)
            paths.setdefault(strip.look(slot), []).append(path)
            continue
        for column in range(int(x), ceil(x + width)):
            widths = columns.setdefault(column, {})
            part = min(x + width, column + 1) - max(x, column)
            widths[slot.what.kind] = widths.get(slot.what.kind, 0.0) + part
    for column, widths in columns.items():
        top = strip.top + 1
        for kind in sorted(widths, key=axes.names.index):
            # Rounding must not push the last kind below the row.
            height = min(widths[kind] * (strip.height - 2), strip.top + strip.height - 1 - top)
            paths.setdefault(f"{kind}0", []).append(_box_path(column, top, 1, height))
            top += height
    for look, parts in paths.items():
        yield element("path", class_=f"k{look}", d="".join(parts))


def _box_path(x: float, y: float, width: float, height: float) -> str:
    wide = number(width)
    return f"M{number(x)} {number(y)}h{wide}v{number(height)}h-{wide}z"


def _memory(timeline: Timeline, axes: Axes, top: float, foot: float) -> Iterator[str]:
    """Yield the memory of all ranks as stepped lines, the highest one in front and filled."""
    most = peak(timeline)
    height = Scale(0, max(axes.memory_bytes, 1), start=foot, end=top)

    def path(curve: Curve) -> str:
        steps = "".join(f"H{number(axes.x(t))}V{number(height(held))}" for t, held in curve)
        return f"{line([(axes.x.start, foot)])}{steps}H{number(axes.x(timeline.makespan_ns))}"

    highest = path(timeline.memory[most.rank])
    yield text(MARGIN, (top + foot) / 2 + 4, "memory")
    yield element("path", class_="under", d=f"{highest}V{number(foot)}z")
    for rank, curve in enumerate(timeline.memory):
        if rank != most.rank:
            yield element("path", class_="line m", d=path(curve))
    yield element("path", class_="line top", d=highest)
    words = f"{format_memory(most.bytes, axes.unit)} on rank {most.rank}"
    yield text(axes.x(most.time_ns) + 4, height(most.bytes) - 6, words, "ink halo")
