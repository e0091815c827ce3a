"""Draw timelines as one SVG picture, light or dark as the viewer's system is.

Panels lie below each other on one time axis. Each pass is a rectangle with a tooltip.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from ..ir.kinds import is_staged
from ..ir.program import NO_MICROBATCH
from ..simulation.timeline import Slot, Timeline
from .elements import Scale, document, element, labels_below, text, tooltip, vertical_lines
from .palette import ink, paint, theme, tint
from .picture import chunk_of, chunks, kind_names, label, nice_step, rows, word
from .summary import BYTES, MemoryUnit, figures, format_time

# Widths and heights in pixels.
WIDTH, GUTTER, MARGIN, LINE_HEIGHT = 1200, 64, 24, 22
STYLE = """
svg{font:11px Inter,system-ui,"Segoe UI",Helvetica,Arial,sans-serif}
text{fill:var(--muted)}.ink{fill:var(--ink);font-weight:600}.name{font-size:15px}
.title{font-size:20px}.in{text-anchor:middle;font-weight:550}.row{fill:var(--rule)}
.grid{stroke:var(--rule)}.pass{stroke:var(--edge);stroke-width:.75}
"""


def render_svg(timelines: Sequence[Timeline], *, title: str = "", unit: MemoryUnit = BYTES) -> str:
    """Return the picture as a file of its own. Raises ValueError without timelines.

    `unit`: the unit of the timelines' memory.
    """
    if not timelines:
        raise ValueError("nothing to draw: got no timelines; give at least one")
    span_ns = max(timeline.makespan_ns for timeline in timelines)
    axes = _Axes(
        Scale(0, max(span_ns, 1), start=MARGIN + GUTTER, end=WIDTH - MARGIN),
        kind_names(timelines),
        max(map(chunks, timelines)),
    )
    parts, y = list[str](), float(MARGIN)
    if title:
        parts.append(text(MARGIN, y + 14, title, "ink title"))
        y += 34
    y = _draw_legend(axes, parts, y)
    for timeline in timelines:
        words = ", ".join(figures(timeline, unit))
        parts.append(text(MARGIN, y + 14, timeline.name, "ink name"))
        parts.append(text(axes.x.end, y + 14, words, "ink", anchor="end"))
        y = _draw_rows(timeline, axes, parts, y + 24) + 36
    height = ceil(y - 8)
    paper = element("rect", fill="var(--paper)", width=WIDTH, height=height, rx=10)
    named = title or ", ".join(timeline.name for timeline in timelines)
    return document(WIDTH, height, [paper, *parts], title=named, style=theme() + STYLE)


@dataclass(frozen=True, slots=True)
class _Axes:
    """What panels share: the time axis, the kinds of passes, and the most chunks of a rank."""

    x: Scale
    names: tuple[str, ...]
    chunks: int

    def fill(self, kind: str, chunk: int) -> str:
        """Return the colour of passes of a kind and chunk."""
        return tint(paint(kind, self.names).fill, chunk, self.chunks if is_staged(kind) else 1)


def _draw_legend(axes: _Axes, parts: list[str], y: float) -> float:
    """Add the legend, as many lines as it needs; return the upper edge of what follows it."""
    x = float(MARGIN)
    for fill, words in _entries(axes):
        # Roughly: box and gap, the words at their mean width, a gap to the next entry.
        width = 27 + 6.3 * len(words) + 16
        if x > MARGIN and x + width > axes.x.end:
            x, y = MARGIN, y + LINE_HEIGHT
        parts.append(element("rect", class_="pass", fill=fill, x=x, y=y, width=20, height=13, rx=3))
        parts.append(text(x + 27, y + 10.5, words))
        x += width
    return y + LINE_HEIGHT + 12


def _entries(axes: _Axes) -> Iterator[tuple[str, str]]:
    """Yield the fill and the words of each entry of the legend."""
    for name in axes.names:
        yield axes.fill(name, 0), f"{name} {word(name, axes.names)}"
    staged = next((name for name in axes.names if is_staged(name)), None)
    if axes.chunks > 1 and staged:
        yield axes.fill(staged, axes.chunks - 1), "later chunk: lighter"
    yield "var(--rule)", "bubble"


def _draw_rows(timeline: Timeline, axes: _Axes, parts: list[str], top: float) -> float:
    """Add a timeline's rows and the time axis below them; return the last row's lower edge."""
    # The more ranks, the lower each row.
    pitch = 24 if len(timeline.ranks) <= 16 else 13
    left, right = axes.x.start, axes.x(timeline.makespan_ns)
    body, y = list[str](), top
    for row in rows(timeline):
        height = 13 if row.lane else pitch
        place = {"x": left, "y": y + 1, "width": right - left, "height": height - 2}
        body.append(text(MARGIN, y + height / 2 + 4, row.label))
        body.append(element("rect", class_="row", rx=2, **place))
        for slot in row.slots:
            fill = axes.fill(slot.what.kind, chunk_of(slot.what, timeline.placement))
            body += _pass(slot, axes.x, fill, row.lane, y, height)
        y += height
    times = range(0, int(axes.x.high) + 1, nice_step(axes.x.high / 10))
    parts.append(element("path", class_="grid", d=vertical_lines(axes.x, times, top, y + 4)))
    words = [(time, format_time(time) if time else "0") for time in times]
    parts += [*labels_below(axes.x, words, y + 18), *body]
    return y


def _pass(slot: Slot, x: Scale, fill: str, is_lane: bool, top: float, height: int) -> Iterator[str]:
    """Yield a pass: a rectangle with a tooltip, and words if they fit."""
    left, width = x(slot.start_ns), max(x(slot.end_ns) - x(slot.start_ns), 0.4)
    times = f"{format_time(slot.start_ns)} to {format_time(slot.end_ns)}"
    place = {"x": left, "y": top + 1, "width": width, "height": height - 2}
    title = tooltip(f"{label(slot, is_lane)}, {times}")
    yield element("rect", title, class_="pass", fill=fill, rx=2, **place)
    microbatch = "" if slot.what.microbatch == NO_MICROBATCH else str(slot.what.microbatch)
    fitting = (w for w in (slot.what.kind + microbatch, microbatch) if width >= 4 + 7 * len(w))
    if not is_lane and height >= 16 and (words := next(fitting, "")):
        place_of_words = left + width / 2, top + height / 2 + 4
        yield text(*place_of_words, words, "in", style=f"fill:{ink(fill)}", pointer_events="none")
