"""Draws lines of shares over evenly spaced ticks, with bands for their intervals."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ....sched.render.elements import (
    Scale,
    element,
    horizontal_lines,
    inline,
    labels_below,
    labels_left,
    line,
    text,
    tooltip,
)
from .bars import UNKNOWN
from .formats import percent

HEIGHT = 168
LEFT, TOP, BOTTOM, RIGHT = 38, 24, 36, 14


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot: name, CSS colour, (tick, share) points, half-widths of their intervals."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    halves: Sequence[float] = ()
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class PlotAxes:
    """Two scales; ticks are placed by their number, so that 1, 4 and 16 are evenly apart."""

    ticks: Sequence[float]
    across: Scale
    up: Scale

    def place(self, tick: float, share: float) -> tuple[float, float]:
        """Return the pixels of a point."""
        return self.across(self.ticks.index(tick)), self.up(share)


def line_plot(
    lines: Sequence[Line],
    title: str,
    ticks: Sequence[float],
    highest: float,
    below: str,
    width: int = 330,
    tick_text: Callable[[float], str] = "{:g}".format,
) -> Markup:
    """Return a plot of shares from 0 to `highest`; `below` is the label of the horizontal axis."""
    right, foot = width - RIGHT, HEIGHT - BOTTOM
    across = Scale(0, max(1, len(ticks) - 1), start=LEFT, end=right)
    up = Scale(0, highest, start=foot, end=TOP)
    levels = up.ticks(3)
    pieces = [
        text(LEFT, 13, title, "strong"),
        element("path", class_="rule", d=horizontal_lines(up, levels, LEFT, right)),
        *labels_left(up, [(level, percent(level, 0)) for level in levels], LEFT - 6),
        *labels_below(across, [(k, tick_text(tick)) for k, tick in enumerate(ticks)], foot + 16),
        text((LEFT + right) / 2, foot + 31, below, anchor="middle"),
    ]
    axes = PlotAxes(ticks, across, up)
    for one in lines:
        pieces += _drawn(one, axes)
    return Markup(inline(width, HEIGHT, pieces, label=f"{title} over {below}"))


def round_up(value: float) -> float:
    """Return the next 1, 2, 4, 6, 8 times a power of ten: the top of an axis.

    >>> round_up(0.43), round_up(0.07), round_up(0.9)
    (0.6, 0.08, 1.0)
    """
    power = 10.0 ** math.floor(math.log10(value))
    top = next(k * power for k in (1, 2, 4, 6, 8, 10) if k * power >= value - 1e-9)
    return round(top, 12)


def _drawn(one: Line, axes: PlotAxes) -> Iterator[str]:
    """Yield a line's band, its path, and a dot with a tooltip for each point."""
    if not one.points:
        return
    colour = f"var({one.colour})"
    known = [
        (tick, share, half)
        for (tick, share), half in zip(one.points, one.halves, strict=False)
        if half < UNKNOWN
    ]
    if len(known) > 1:
        upper = [axes.place(tick, share + half) for tick, share, half in known]
        lower = [axes.place(tick, share - half) for tick, share, half in reversed(known)]
        yield element("path", class_="band", fill=colour, d=line(upper + lower, close=True))
    places = [axes.place(tick, share) for tick, share in one.points]
    look = "line dashed" if one.dashed else "line"
    yield element("path", class_=look, stroke=colour, d=line(places))
    for (x, y), (_, share) in zip(places, one.points, strict=True):
        words = tooltip(f"{one.name}: {percent(share)}")
        yield element("circle", words, cx=x, cy=y, r=3, fill=colour)
