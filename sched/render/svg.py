"""Draw timelines as one SVG picture, light or dark as the viewer's system is.

Panels lie below each other on one time axis. Each pass is a rectangle with a tooltip.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from ..ir.kinds import is_staged
from ..ir.program import NO_MICROBATCH
from ..simulation.timeline import Slot, Timeline
from .palette import choose_colour, choose_ink, make_theme_css, tint
from .picture import chunk_number, chunks, kind_names, label, nice_step, rows, word
from .summary import BYTES, MemoryUnit, figures, format_time

# Widths and heights in pixels.
WIDTH, GUTTER, MARGIN, LINE_HEIGHT = 1200, 64, 24, 22
LEFT, RIGHT = MARGIN + GUTTER, WIDTH - MARGIN
STYLE = """
svg{font:11px Inter,system-ui,"Segoe UI",Helvetica,Arial,sans-serif}
text{fill:var(--muted)}.ink{fill:var(--ink);font-weight:600}.name{font-size:15px}
.title{font-size:20px}.in{text-anchor:middle;font-weight:550;pointer-events:none}.row{fill:var(--rule)}
.grid{stroke:var(--rule)}.pass{stroke:var(--edge);stroke-width:.75}
"""


def render_svg(timelines: Sequence[Timeline], *, title: str = "", unit: MemoryUnit = BYTES) -> str:
    """Return the picture as a file of its own. Raises ValueError without timelines.

    `unit`: the unit of the timelines' memory.
    """
    if not timelines:
        raise ValueError("nothing to draw: got no timelines; give at least one")
    named = title or ", ".join(timeline.name for timeline in timelines)
    span_ns = max(1, *(timeline.makespan_ns for timeline in timelines))
    most = max(map(chunks, timelines))
    picture = new_picture(named, make_theme_css() + STYLE)
    drawing = _Drawing(picture, span_ns, kind_names(timelines), most)
    y = float(MARGIN)
    if title:
        add(drawing.root, "text", title, class_="ink title", x=MARGIN, y=y + 14)
        y += 34
    y = drawing.legend(y)
    for timeline in timelines:
        words = ", ".join(figures(timeline, unit))
        add(drawing.root, "text", timeline.name, class_="ink name", x=MARGIN, y=y + 14)
        add(drawing.root, "text", words, class_="ink", x=RIGHT, y=y + 14, text_anchor="end")
        y = drawing.ranks(timeline, y + 24) + 36
    return document(drawing.root, WIDTH, ceil(y - 8))


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A picture, and what its panels share: the kinds of passes, the most chunks of a rank."""

    root: Element
    span_ns: int
    names: tuple[str, ...]
    chunks: int

    def x(self, ns: float) -> float:
        """Return the pixel of a time."""
        return LEFT + (RIGHT - LEFT) * ns / self.span_ns

    def fill(self, kind: str, chunk: int) -> str:
        """Return the colour of passes of a kind and chunk."""
        return tint(choose_colour(kind, self.names), chunk, self.chunks if is_staged(kind) else 1)

    def legend(self, y: float) -> float:
        """Add the legend, as many lines as it needs; return the upper edge of what follows it."""
        x = float(MARGIN)
        for fill, words in self._entries():
            # Roughly: box and gap, the words at their mean width, a gap to the next entry.
            width = 27 + 6.3 * len(words) + 16
            if x > MARGIN and x + width > RIGHT:
                x, y = MARGIN, y + LINE_HEIGHT
            add(self.root, "rect", class_="pass", fill=fill, x=x, y=y, width=20, height=13, rx=3)
            add(self.root, "text", words, x=x + 27, y=y + 10.5)
            x += width
        return y + LINE_HEIGHT + 12

    def _entries(self) -> Iterator[tuple[str, str]]:
        """Yield the fill and the words of each entry of the legend."""
        for name in self.names:
            yield self.fill(name, 0), f"{name} {word(name)}"
        staged = next((name for name in self.names if is_staged(name)), None)
        if self.chunks > 1 and staged:
            yield self.fill(staged, self.chunks - 1), "later chunk: lighter"
        yield "var(--rule)", "bubble"

    def ranks(self, timeline: Timeline, top: float) -> float:
        """Add a timeline's rows and the time axis below; return the last row's lower edge."""
        # The more ranks, the lower each row.
        pitch = 24 if len(timeline.ranks) <= 16 else 13
        drawn = [(row, 13 if row.lane else pitch) for row in rows(timeline)]
        bottom = top + sum(height for _, height in drawn)
        times = range(0, self.span_ns + 1, nice_step(self.span_ns / 10))
        words = ((time, format_time(time) if time else "0") for time in times)
        add_axis(self.root, self.x, words, top, bottom + 4)
        width = self.x(timeline.makespan_ns) - LEFT
        for row, height in drawn:
            place: dict[str, Any] = {"x": LEFT, "y": top + 1, "width": width, "height": height - 2}
            add(self.root, "text", row.label, x=MARGIN, y=top + height / 2 + 4)
            add(self.root, "rect", class_="row", rx=2, **place)
            for slot in row.slots:
                fill = self.fill(slot.what.kind, chunk_number(slot.what, timeline.placement))
                self._pass(slot, fill, row.lane, top, height)
            top += height
        return bottom

    def _pass(self, slot: Slot, fill: str, is_lane: bool, top: float, height: int) -> None:
        """Add a pass: a rectangle with a tooltip, and words if they fit."""
        left = self.x(slot.start_ns)
        width = max(self.x(slot.end_ns) - left, 0.4)
        times = f"{format_time(slot.start_ns)} to {format_time(slot.end_ns)}"
        place: dict[str, Any] = {"x": left, "y": top + 1, "width": width, "height": height - 2}
        box = add(self.root, "rect", class_="pass", fill=fill, rx=2, **place)
        add(box, "title", f"{label(slot, is_lane)}, {times}")
        microbatch = "" if slot.what.microbatch == NO_MICROBATCH else str(slot.what.microbatch)
        fitting = (w for w in (slot.what.kind + microbatch, microbatch) if width >= 4 + 7 * len(w))
        if not is_lane and height >= 16 and (words := next(fitting, "")):
            x, y = left + width / 2, top + height / 2 + 4
            add(self.root, "text", words, class_="in", x=x, y=y, style=f"fill:{choose_ink(fill)}")


def new_picture(title: str, style: str) -> Element:
    """Return a picture with nothing on its paper but a style sheet."""
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
    add(root, "title", title)
    add(root, "style", style)
    add(root, "rect", width="100%", height="100%", rx=10, fill="var(--paper)")
    return root


def add(parent: Element, name: str, words: str = "", **attributes: str | float) -> Element:
    """Add an element to another, with words in it if any; numbers get one decimal at most.

    `class_` stands for class, other underscores for hyphens.
    """
    written = {
        key.rstrip("_").replace("_", "-"): value if isinstance(value, str) else number(value)
        for key, value in attributes.items()
    }
    element = SubElement(parent, name, written)
    element.text = words or None
    if parent.tag == "svg":
        element.tail = "\n"
    return element


def add_axis(
    root: Element, across: Callable[[float], float], labels: Iterable[tuple[float, str]],
    top: float, bottom: float,
) -> None:  # fmt: skip
    """Add a line at each value of a horizontal axis, and its label below."""
    for value, words in labels:
        x = across(value)
        add(root, "line", class_="grid", x1=x, x2=x, y1=top, y2=bottom)
        add(root, "text", words, x=x, y=bottom + 14, text_anchor="middle")


def document(root: Element, width: float, height: float) -> str:
    """Return a picture as a file of its own."""
    root.attrib |= {"width": number(width), "height": number(height)}
    root.set("viewBox", f"0 0 {number(width)} {number(height)}")
    return tostring(root, encoding="unicode") + "\n"


def number(value: float) -> str:
    """Return a number with at most one decimal.

    >>> number(3.0), number(2.96), number(7), number(-0.01)
    ('3', '3', '7', '0')
    """
    words = f"{value:.1f}".removesuffix(".0")
    return "0" if words == "-0" else words
