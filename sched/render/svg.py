"""A still picture of timelines: one standalone SVG, light or dark as the viewer wishes.

Panels lie below each other on one time axis and one memory axis. Up to PASS_LIMIT passes are
rectangles, one each, with a title; beyond that those of one row and kind share a path, and
passes narrower than a pixel share its column by their time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from xml.sax.saxutils import escape

from ..ir.passes import NO_MICROBATCH
from ..simulation.timeline import Curve, Slot, Timeline
from .palette import paint
from .picture import Row, chunk_of, chunks, kind_names, label, nice_step, rows
from .summary import BYTES, MemoryUnit, figures, format_memory, format_time, peak
from .svg_style import PATTERNS, STYLE, fills, legend

PASS_LIMIT = 6000
GUTTER, MARGIN = 64, 24
MEMORY, LANE = 64, 12
WIDE = 1.5


@dataclass(frozen=True, slots=True)
class Scale:
    """The common axes of all panels: from nanoseconds and bytes to pixels."""

    width: float
    span_ns: int
    memory_bytes: int
    names: tuple[str, ...]
    unit: MemoryUnit
    merge: bool
    chunks: int

    def x(self, ns: int) -> float:
        """Return where a time lies, in pixels from the left edge of the picture."""
        return MARGIN + GUTTER + self.width * ns / max(self.span_ns, 1)


def render_svg(
    timelines: Sequence[Timeline],
    *,
    title: str = "",
    unit: MemoryUnit = BYTES,
    width: int = 1200,
) -> str:
    """Return the picture, `width` pixels wide. Raises ValueError without timelines.

    `unit`: what the timelines' memory counts.
    """
    if not timelines:
        raise ValueError("nothing to draw: got no timelines; give at least one")
    scale = Scale(
        width - GUTTER - 2 * MARGIN,
        max(timeline.makespan_ns for timeline in timelines),
        max(peak(timeline).bytes for timeline in timelines),
        kind_names(timelines),
        unit,
        sum(len(row.slots) for t in timelines for row in rows(t)) > PASS_LIMIT,
        max(map(chunks, timelines)),
    )
    parts: list[str] = []
    y = float(MARGIN)
    if title:
        parts.append(_text(MARGIN, y + 14, title, "name title"))
        y += 34
    drawn, y = legend(scale.names, scale.chunks, MARGIN, width - MARGIN, y)
    parts.append(drawn)
    for timeline in timelines:
        panel, y = _panel(timeline, scale, y)
        parts += panel
    height = ceil(y - 8)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>{escape(title or ', '.join(t.name for t in timelines))}</title>\n"
        f"<style>{STYLE}{fills(scale.names, scale.chunks)}</style>\n<defs>{PATTERNS}</defs>\n"
        f'<rect class="paper" width="{width}" height="{height}" rx="10"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(timeline: Timeline, scale: Scale, y: float) -> tuple[list[str], float]:
    """A panel's parts and where the next one begins."""
    pitch = 24 if len(timeline.ranks) <= 8 else 17 if len(timeline.ranks) <= 16 else 11
    most = peak(timeline)
    right = scale.x(scale.span_ns)
    parts = [
        _text(MARGIN, y + 14, timeline.name, "name"),
        _text(right, y + 14, ", ".join(figures(timeline, scale.unit)), "ink right"),
    ]
    top = y + 24
    y = top
    body: list[str] = []
    for row in rows(timeline):
        height = LANE if row.lane else pitch
        body += _row(row, timeline, scale, y, height)
        y += height
    foot = y + 14 + MEMORY if most.bytes else y + 4
    parts += _grid(scale, top, foot) + body
    end = scale.x(timeline.makespan_ns)
    parts.append(f'<path class="end" d="M{end:.1f} {top}V{y}" stroke-width="1.5"/>')
    if most.bytes:
        parts += _memory(timeline, scale, y + 22, foot)
    return parts, foot + 36


def _grid(scale: Scale, top: float, foot: float) -> list[str]:
    step = nice_step(scale.span_ns / 10)
    times = range(0, scale.span_ns + 1, step)
    lines = "".join(f"M{scale.x(time):.1f} {top}V{foot}" for time in times)
    texts = [
        _text(scale.x(time), foot + 14, format_time(time) if time else "0", "middle")
        for time in times
    ]
    return [f'<path class="grid" d="{lines}"/>', *texts]


def _row(row: Row, timeline: Timeline, scale: Scale, y: float, height: float) -> Iterator[str]:
    if height > 11 or int(row.label.split()[-1]) % 2 == 0:
        yield _text(MARGIN, y + height / 2 + 4, row.label)
    left, width = scale.x(0), scale.x(timeline.makespan_ns) - scale.x(0)
    box = f'x="{left}" y="{y + 1}" width="{width:.1f}" height="{height - 2}" rx="2"'
    yield f'<rect class="row" {box}/>'
    if not row.lane:
        yield f'<rect fill="url(#hatch)" {box}/>'
    if scale.merge:
        yield from _merged(row, timeline, scale, y, height)
        return
    for slot in row.slots:
        yield _pass(slot, row, timeline, scale, y, height)


def _pass(slot: Slot, row: Row, timeline: Timeline, scale: Scale, y: float, height: float) -> str:
    left, width = _extent(slot, scale)
    width = max(width, 0.4)
    look = f"{slot.what.kind}{chunk_of(slot.what, timeline.placement)}"
    box = f'x="{left:.1f}" y="{y + 1}" width="{width:.1f}" height="{height - 2}" rx="2"'
    name = label(slot, row.lane)
    times = f"{format_time(slot.start_ns)} to {format_time(slot.end_ns)}"
    text = f'<rect class="k{look}" {box}><title>{name}, {times}</title></rect>'
    if paint(slot.what.kind, scale.names).striped:
        text += f'<rect fill="url(#stripes)" pointer-events="none" {box}/>'
    words = "" if row.lane or height < 16 else _inside(slot, width)
    if words:
        middle = f'x="{left + width / 2:.1f}" y="{y + height / 2 + 4}"'
        text += f'<text class="in t{look}" {middle} pointer-events="none">{words}</text>'
    return text


def _inside(slot: Slot, width: float) -> str:
    """What fits into a pass: kind and microbatch, the microbatch alone, or nothing."""
    number = "" if slot.what.microbatch == NO_MICROBATCH else str(slot.what.microbatch)
    for words in (slot.what.kind + number, number):
        if width >= 4 + 7 * len(words):
            return words
    return ""


def _extent(slot: Slot, scale: Scale) -> tuple[float, float]:
    left, right = scale.x(slot.start_ns), scale.x(slot.end_ns)
    gap = 0.5 if right - left > 4 else 0.0
    return left + gap, right - left - 2 * gap


def _merged(row: Row, timeline: Timeline, scale: Scale, y: float, height: float) -> Iterator[str]:
    """One path for each kind; passes narrower than a pixel share its column by their time."""
    paths: dict[str, list[str]] = {}
    columns: dict[int, dict[str, float]] = {}
    for slot in row.slots:
        x, width = _extent(slot, scale)
        if width >= WIDE:
            look = f"{slot.what.kind}{chunk_of(slot.what, timeline.placement)}"
            path = f"M{x:.1f} {y + 1}h{width:.1f}v{height - 2}h-{width:.1f}z"
            paths.setdefault(look, []).append(path)
        else:
            for column in range(int(x), ceil(x + width)):
                shares = columns.setdefault(column, {})
                part = min(x + width, column + 1) - max(x, column)
                shares[slot.what.kind] = shares.get(slot.what.kind, 0.0) + part
    for column, shares in columns.items():
        top = y + 1
        for kind in sorted(shares, key=scale.names.index):
            part = min(shares[kind] * (height - 2), y + height - 1 - top)
            path = f"M{column} {top:.1f}h1v{part:.1f}h-1z"
            paths.setdefault(f"{kind}0", []).append(path)
            top += part
    for look, parts in paths.items():
        yield f'<path class="k{look}" d="{"".join(parts)}"/>'


def _memory(timeline: Timeline, scale: Scale, top: float, foot: float) -> Iterator[str]:
    most = peak(timeline)

    def height(held: int) -> float:
        return foot - (foot - top) * held / max(scale.memory_bytes, 1)

    def path(curve: Curve) -> str:
        steps = "".join(f"H{scale.x(time):.1f}V{height(held):.1f}" for time, held in curve)
        return f"M{scale.x(0)} {foot}{steps}H{scale.x(timeline.makespan_ns):.1f}"

    yield _text(MARGIN, (top + foot) / 2 + 4, "memory")
    yield f'<path class="under" d="{path(timeline.memory[most.rank])}V{foot}z"/>'
    for rank, curve in enumerate(timeline.memory):
        if rank != most.rank:
            yield f'<path class="line m" d="{path(curve)}"/>'
    yield f'<path class="line top" d="{path(timeline.memory[most.rank])}"/>'
    x, y = scale.x(most.time_ns), height(most.bytes)
    words = f"{format_memory(most.bytes, scale.unit)} on rank {most.rank}"
    yield _text(x + 4, y - 6, words, "ink halo")


def _text(x: float, y: float, words: str, look: str = "") -> str:
    style = f' class="{look}"' if look else ""
    return f'<text{style} x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
