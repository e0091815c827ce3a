"""Draw the sensitivity figures as one SVG picture, light or dark as the viewer's system is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from counterpoise.sched.render.elements import (
    Scale,
    document,
    element,
    labels_below,
    line,
    text,
)
from counterpoise.sched.render.palette import theme

from .sensitivity import Point

PANEL, GAP, TOP, HEIGHT = 240, 70, 62, 190
COLOURS = {
    "whole kernels": "#cf6230",
    "split kernels": "#4961d4",
}
STYLE = (
    theme(
        {
            "ink": ("#101418", "#e8eaed"),
            "paper": ("#fff", "#15181c"),
            "grid": ("#d5d8dc", "#3a4047"),
        }
    )
    + """svg{font:12px system-ui,sans-serif}
text{fill:var(--ink)}.title{font-weight:600}.key{font-size:10px}.paper{fill:var(--paper)}
.grid{stroke:var(--grid);fill:none}.line{fill:none;stroke-width:2}
"""
)


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: its title, its x axis's label, its lines as (x, y) by name, and the highest y."""

    title: str
    below: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    high: float


def chart_svg(points: Mapping[str, Sequence[Point]]) -> str:
    """Return a plot of the hidden share for each changed setting."""
    panels = [
        Panel(
            "encoder time hidden",
            name,
            {
                "whole kernels": [(one.x, 100 * one.whole) for one in row],
                "split kernels": [(one.x, 100 * one.split) for one in row],
            },
            100,
        )
        for name, row in points.items()
    ]
    width = GAP + len(panels) * (PANEL + GAP)
    height = TOP + HEIGHT + 60
    paper = element("rect", class_="paper", width=width, height=height)
    parts = [part for at, panel in enumerate(panels) for part in _panel(panel, at)]
    title = "What hiding encoder work depends on"
    return document(width, height, [paper, *parts], title=title, style=STYLE)


def _panel(panel: Panel, at: int) -> Iterator[str]:
    """Yield a panel's title, legend, axes and lines."""
    left, foot = GAP + at * (PANEL + GAP), TOP + HEIGHT
    xs = [x for points in panel.lines.values() for x, _ in points]
    across = Scale(min(xs), max(xs), start=left, end=left + PANEL)
    up = Scale(0, panel.high, start=foot, end=TOP)
    yield text(left, TOP - 38, panel.title, "title")
    for level in (panel.high * k / 4 for k in range(5)):
        grid = line([(left, up(level)), (left + PANEL, up(level))])
        yield element("path", class_="grid", d=grid)
        yield text(left - 6, up(level) + 4, f"{level:g} %", anchor="end")
    thirds = min(xs), (min(xs) + max(xs)) / 2, max(xs)
    yield from labels_below(across, [(x, _number(x)) for x in thirds], foot + 18)
    yield text(left + PANEL / 2, foot + 40, panel.below, anchor="middle")
    for number, (name, points) in enumerate(panel.lines.items()):
        places = [(across(x), up(y)) for x, y in points]
        yield element("path", **_look(name), d=line(places))
        for x, y in places:
            yield element("circle", cx=x, cy=y, r=2.5, fill=COLOURS[name])
        key = left - 24 + number * 96
        yield element("path", **_look(name), d=line([(key, TOP - 22), (key + 14, TOP - 22)]))
        yield text(key + 18, TOP - 18, name, "key")


def _look(name: str) -> dict[str, str]:
    """Return the attributes of a line: its colour."""
    return {"class_": "line", "stroke": COLOURS[name]}


def _number(x: float) -> str:
    """Return a number with two digits, or whole from 10 up.

    >>> _number(0.0324), _number(300.6)
    ('0.032', '301')
    """
    return f"{x:.0f}" if x >= 10 else f"{x:.2g}"
