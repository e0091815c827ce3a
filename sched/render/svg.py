"""Draw timelines as one SVG picture, light or dark as the viewer's system is.

Panels lie below each other on one time axis and one memory axis. Up to PASS_LIMIT passes, each is a
rectangle with a tooltip; beyond that the passes of one row, kind and chunk share a path.
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
    tooltip,
    vertical_lines,
)
from .palette import ink, paint, theme, tint
from .picture import Row, chunk_of, chunks, kind_names, label, nice_step, rows, word
from .summary import BYTES, MemoryUnit, figures, format_memory, format_time, peak

PASS_LIMIT = 6000
# Widths and heights in pixels.
LINE_HEIGHT, GUTTER, MARGIN, MEMORY, LANE = 22, 64, 24, 64, 12
STYLE = """
.timeline{font:11px Inter,system-ui,"Segoe UI",Helvetica,Arial,sans-serif}
.timeline text{fill:var(--muted)}.timeline .ink{fill:var(--ink);font-weight:600}
.timeline .name{font-size:15px}.timeline .title{font-size:20px}
.timeline .in{text-anchor:middle;font-weight:550}.timeline .row{fill:var(--row)}
.timeline .hatch{stroke:var(--hatch)}.timeline .grid{stroke:var(--rule)}
.timeline .pass{stroke:var(--edge);stroke-width:.75}.timeline .end{stroke:var(--ink)}
.timeline .line{fill:none;stroke:var(--memory);stroke-linejoin:round}
.timeline .top{stroke:var(--peak);stroke-width:2.2}
.timeline .under{fill:var(--peak);fill-opacity:.07}
.timeline .halo{paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}
"""
PATTERNS = """<pattern id="hatch" patternUnits="userSpaceOnUse" width="6" height="6"
 patternTransform="rotate(45)"><path class="hatch" d="M0 0V6" stroke-width="1.6"/></pattern>
<pattern id="stripes" patternUnits="userSpaceOnUse" width="6" height="6"
 patternTransform="rotate(-45)"><path d="M0 0V6" stroke="#fff" stroke-opacity=".26"
 stroke-width="2.2"/></pattern>"""


def render_svg(
    timelines: Sequence[Timeline],
    *,
    title: str = "",
    unit: MemoryUnit = BYTES,
    width: int = 1200,
) -> str:
    """Return the picture as a file of its own, `width` pixels wide. Raises ValueError for none.

    `unit`: the unit of the timelines' memory.
    """
    parts, height = draw_timelines(timelines, title=title, unit=unit, width=width)
    paper = element("rect", fill="var(--paper)", width=width, height=height, rx=10)
    words = title or ", ".join(timeline.name for timeline in timelines)
    style = theme() + STYLE
    return document(width, height, [paper, *parts], title=words, style=style, look="timeline")


def draw_timelines(
    timelines: Sequence[Timeline], *, title: str = "", unit: MemoryUnit = BYTES, width: int = 1200
) -> tuple[list[str], int]:
    """Return the parts of a picture that has class "timeline" and STYLE, and its height."""
    if not timelines:
        raise ValueError("nothing to draw: got no timelines; give at least one")
    span_ns = max(timeline.makespan_ns for timeline in timelines)
    passes = sum(len(row.slots) for timeline in timelines for row in rows(timeline))
    axes = _Axes(
        Scale(0, max(span_ns, 1), start=MARGIN + GUTTER, end=width - MARGIN),
        max(peak(timeline).bytes for timeline in timelines),
        kind_names(timelines),
        unit,
        passes > PASS_LIMIT,
        max(map(chunks, timelines)),
    )
    parts, y = [element("defs", PATTERNS)], float(MARGIN)
    if title:
        parts.append(text(MARGIN, y + 14, title, "ink title"))
        y += 34
    entries, y = _legend(axes, y)
    parts += entries
    for timeline in timelines:
        panel, y = _panel(timeline, axes, y)
        parts += panel
    return parts, ceil(y - 8)


@dataclass(frozen=True, slots=True)
class _Axes:
    """What panels share. `merged`: a path for each row and kind, not a rectangle for each pass."""

    x: Scale
    memory_bytes: int
    names: tuple[str, ...]
    unit: MemoryUnit
    merged: bool
    chunks: int

    def fill(self, kind: str, chunk: int) -> str:
        """Return the colour of passes of a kind and chunk."""
        return tint(paint(kind, self.names).fill, chunk, self.chunks if is_staged(kind) else 1)


@dataclass(frozen=True, slots=True)
class _Strip:
    """The part of a panel that a row occupies: its upper edge and its height in pixels."""

    row: Row
    timeline: Timeline
    top: float
    height: float

    def box(self, left: float, width: float, *content: str, **attributes: str | None) -> str:
        """Return a rectangle across the row, one pixel lower than it on either side."""
        place = {"x": left, "y": self.top + 1, "width": width, "height": self.height - 2, "rx": 2}
        return element("rect", *content, **attributes, **place)


def _legend(axes: _Axes, y: float) -> tuple[list[str], float]:
    """Return the legend, as many lines as it needs, and the upper edge of what follows it."""
    parts, x = list[str](), float(MARGIN)
    for fills, letter, words in _entries(axes):
        # Roughly: box and gap, the words at their mean width, a gap to the next entry.
        width = 27 + 6.3 * len(f"{letter} {words}") + 16
        if x > MARGIN and x + width > axes.x.end:
            x, y = MARGIN, y + LINE_HEIGHT
        look = {"x": x, "y": y, "width": 20, "height": 13, "rx": 3}
        parts += [element("rect", class_="pass", fill=fill, **look) for fill in fills]
        strong = element("tspan", escape(letter), class_="ink")
        parts.append(element("text", f"{strong} {escape(words)}", x=x + 27, y=y + 10.5))
        x += width
    return parts, y + LINE_HEIGHT + 12


def _entries(axes: _Axes) -> Iterator[tuple[list[str], str, str]]:
    """Yield the fills of each entry's boxes, one upon the other, its letter and its words."""
    for name in axes.names:
        stripes = ["url(#stripes)"] if paint(name, axes.names).striped else []
        yield [axes.fill(name, 0), *stripes], name, word(name, axes.names)
    staged = next((name for name in axes.names if is_staged(name)), None)
    if axes.chunks > 1 and staged:
        yield [axes.fill(staged, axes.chunks - 1)], "", "later chunk: lighter"
    yield ["var(--row)", "url(#hatch)"], "", "bubble"


def _panel(timeline: Timeline, axes: _Axes, y: float) -> tuple[list[str], float]:
    """Return a panel's parts and the upper edge of the next panel."""
    most = peak(timeline)
    parts = [
        text(MARGIN, y + 14, timeline.name, "ink name"),
        text(axes.x.end, y + 14, ", ".join(figures(timeline, axes.unit)), "ink", anchor="end"),
    ]
    top = y = y + 24
    # The more ranks, the lower each row.
    pitch = 24 if len(timeline.ranks) <= 8 else 17 if len(timeline.ranks) <= 16 else 11
    body = list[str]()
    for row in rows(timeline):
        strip = _Strip(row, timeline, y, LANE if row.lane else pitch)
        body += _row(strip, axes)
        y += strip.height
    foot = y + 14 + MEMORY if most.bytes else y + 4
    times = range(0, int(axes.x.high) + 1, nice_step(axes.x.high / 10))
    parts.append(element("path", class_="grid", d=vertical_lines(axes.x, times, top, foot)))
    words = [(time, format_time(time) if time else "0") for time in times]
    parts += [*labels_below(axes.x, words, foot + 14), *body]
    end = number(axes.x(timeline.makespan_ns))
    parts.append(element("path", class_="end", d=f"M{end} {top}V{y}", stroke_width=1.5))
    if most.bytes:
        parts += _memory(timeline, axes, y + 22, foot)
    return parts, foot + 36


def _row(strip: _Strip, axes: _Axes) -> Iterator[str]:
    row = strip.row
    # Where rows are lower than a line of text, every other one has a label.
    if strip.height > 11 or int(row.label.split()[-1]) % 2 == 0:
        yield text(MARGIN, strip.top + strip.height / 2 + 4, row.label)
    left, right = axes.x.start, axes.x(strip.timeline.makespan_ns)
    yield strip.box(left, right - left, class_="row")
    if not row.lane:
        yield strip.box(left, right - left, fill="url(#hatch)")
    if not axes.merged:
        for slot in row.slots:
            yield _pass(slot, strip, axes)
        return
    paths: dict[str, list[str]] = {}
    for slot in row.slots:
        left, width = _extent(slot, axes)
        box = f"M{number(left)} {strip.top + 1}h{width:.2f}v{strip.height - 2}h-{width:.2f}z"
        paths.setdefault(_fill(slot, strip, axes), []).append(box)
    for fill, boxes in paths.items():
        yield element("path", fill=fill, d="".join(boxes))


def _fill(slot: Slot, strip: _Strip, axes: _Axes) -> str:
    return axes.fill(slot.what.kind, chunk_of(slot.what, strip.timeline.placement))


def _pass(slot: Slot, strip: _Strip, axes: _Axes) -> str:
    """Return a pass: a rectangle with a tooltip, stripes for some kinds, and words if they fit."""
    left, width = _extent(slot, axes)
    width, fill = max(width, 0.4), _fill(slot, strip, axes)
    times = f"{format_time(slot.start_ns)} to {format_time(slot.end_ns)}"
    title = tooltip(f"{label(slot, strip.row.lane)}, {times}")
    drawn = strip.box(left, width, title, class_="pass", fill=fill)
    if paint(slot.what.kind, axes.names).striped:
        drawn += strip.box(left, width, fill="url(#stripes)", pointer_events="none")
    if not strip.row.lane and strip.height >= 16 and (words := _words_inside(slot, width)):
        x, y = left + width / 2, strip.top + strip.height / 2 + 4
        drawn += text(x, y, words, "in", style=f"fill:{ink(fill)}", pointer_events="none")
    return drawn


def _words_inside(slot: Slot, width: float) -> str:
    """Return the words that fit into a pass: kind and microbatch, the microbatch alone, or none."""
    microbatch = "" if slot.what.microbatch == NO_MICROBATCH else str(slot.what.microbatch)
    fitting = (w for w in (slot.what.kind + microbatch, microbatch) if width >= 4 + 7 * len(w))
    return next(fitting, "")


def _extent(slot: Slot, axes: _Axes) -> tuple[float, float]:
    """Return a pass's left edge and width; wide ones leave a gap to their neighbours."""
    left, right = axes.x(slot.start_ns), axes.x(slot.end_ns)
    gap = 0.5 if right - left > 4 else 0.0
    return left + gap, right - left - 2 * gap


def _memory(timeline: Timeline, axes: _Axes, top: float, foot: float) -> Iterator[str]:
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
            yield element("path", class_="line", d=path(curve))
    yield element("path", class_="line top", d=highest)
    words = f"{format_memory(most.bytes, axes.unit)} on rank {most.rank}"
    yield text(axes.x(most.time_ns) + 4, height(most.bytes) - 6, words, "ink halo")
