"""The sensitivity figures as one still picture, light or dark as the viewer wishes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .sensitivity import Point

PANEL, GAP, TOP, HEIGHT = 240, 70, 62, 190
COLOURS = {
    "whole kernels": "#cf6230",
    "split kernels": "#4961d4",
    "upper bound": "#8a9099",
    "offline": "#cf6230",
    "guarded": "#b8860b",
    "re-planned": "#4961d4",
}
STYLE = """
svg{font:12px system-ui,sans-serif;--ink:#101418;--paper:#fff;--line:#d5d8dc}
@media(prefers-color-scheme:dark){svg{--ink:#e8eaed;--paper:#15181c;--line:#3a4047}}
text{fill:var(--ink)} .grid{stroke:var(--line);fill:none} .bg{fill:var(--paper)}
.title{font-weight:600}
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: its words, its lines as (x, y) by name, and the highest y."""

    title: str
    below: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    high: float
    percent: bool = True


def chart_svg(points: Mapping[str, Sequence[Point]], jitter: Mapping[str, Any]) -> str:
    """Hidden share by each thing that was changed, and what drift costs."""
    panels = [
        Panel(
            "encoder time hidden",
            name,
            {
                "whole kernels": [(one.x, 100 * one.whole) for one in row],
                "split kernels": [(one.x, 100 * one.split) for one in row],
                "upper bound": [(one.x, 100 * one.bound) for one in row],
            },
            100,
        )
        for name, row in points.items()
    ]
    drift = jitter["drift"]
    keys = {"offline": "offline", "guarded": "guarded", "re-planned": "replanned"}
    lines = {
        word: [(float(cv), 100 * row[key]) for cv, row in drift.items()]
        for word, key in keys.items()
    }
    panels.append(Panel("step lost to drift", "variation (cv) of the drift", lines, 2.0))
    width = GAP + len(panels) * (PANEL + GAP)
    foot = TOP + HEIGHT + 60
    body = [text for at, panel in enumerate(panels) for text in _panel(panel, at)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {foot}" role="img">',
            "<title>What hiding encoder work depends on</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="bg" width="{width}" height="{foot}"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def _panel(panel: Panel, at: int) -> Iterator[str]:
    left = GAP + at * (PANEL + GAP)
    foot = TOP + HEIGHT
    xs = [x for line in panel.lines.values() for x, _ in line]
    low, high = min(xs), max(xs)
    span = (high - low) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return left + PANEL * (x - low) / span, foot - HEIGHT * min(y, panel.high) / panel.high

    yield f'<text class="title" x="{left}" y="{TOP - 38}">{escape(panel.title)}</text>'
    for step in range(5):
        y = panel.high * step / 4
        _, level = place(low, y)
        yield f'<path class="grid" d="M{left} {level:.1f}h{PANEL}"/>'
        yield f'<text x="{left - 6}" y="{level + 4:.1f}" text-anchor="end">{y:g} %</text>'
    for x in (low, (low + high) / 2, high):
        where, _ = place(x, 0)
        yield f'<text x="{where:.1f}" y="{foot + 18}" text-anchor="middle">{_number(x)}</text>'
    middle = left + PANEL / 2
    yield f'<text x="{middle}" y="{foot + 40}" text-anchor="middle">{escape(panel.below)}</text>'
    dashes = {"upper bound": "5 4", "whole kernels": "none", "guarded": "2 3"}
    for number, (name, line) in enumerate(panel.lines.items()):
        colour = COLOURS[name]
        path = "L".join("{:.1f} {:.1f}".format(*place(x, y)) for x, y in line)
        look = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes.get(name, "none")}"'
        yield f'<path fill="none" {look} d="M{path}"/>'
        for x, y in line:
            cx, cy = place(x, y)
            yield f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="2.5" fill="{colour}"/>'
        key = left + number * 92
        yield f'<path {look} d="M{key} {TOP - 22}h14"/>'
        yield f'<text x="{key + 18}" y="{TOP - 18}" font-size="10">{escape(name)}</text>'


def _number(x: float) -> str:
    """Two digits, or whole.

    >>> _number(0.0324), _number(300.6)
    ('0.032', '301')
    """
    return f"{x:.0f}" if x >= 10 else f"{x:.2g}"
