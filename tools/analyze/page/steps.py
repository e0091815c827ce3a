"""Prepares the sections about steps: waiting, grid, padding, images, host, pipelines, errors."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from ..model.strategies import STRATEGIES
from .bars import COLOURS, UNKNOWN, bars, both_widths, percent

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


# The pixels of a tick and a share.
Place = Callable[[float, float], tuple[float, float]]


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

    def place(tick: float, share: float) -> tuple[float, float]:
        # Ticks are placed by their number, so that 1, 4 and 16 are evenly apart.
        return across(ticks.index(tick)), up(share)

    for one in lines:
        pieces += _drawn(one, place)
    return Markup(inline(width, HEIGHT, pieces, label=f"{title} over {below}"))


def round_up(value: float) -> float:
    """Return the next 1, 2, 4, 6, 8 times a power of ten: the top of an axis.

    >>> round_up(0.43), round_up(0.07), round_up(0.9)
    (0.6, 0.08, 1.0)
    """
    power = 10.0 ** math.floor(math.log10(value))
    top = next(k * power for k in (1, 2, 4, 6, 8, 10) if k * power >= value - 1e-9)
    return round(top, 12)


def _drawn(one: Line, place: Place) -> Iterator[str]:
    """Yield a line's band, its path, and a dot with a tooltip for each point."""
    colour = f"var({one.colour})"
    known = [
        (tick, share, half)
        for (tick, share), half in zip(one.points, one.halves, strict=False)
        if half < UNKNOWN
    ]
    if len(known) > 1:
        upper = [place(tick, share + half) for tick, share, half in known]
        lower = [place(tick, share - half) for tick, share, half in reversed(known)]
        yield element("path", class_="band", fill=colour, d=line(upper + lower, close=True))
    places = [place(tick, share) for tick, share in one.points]
    look = "line dashed" if one.dashed else "line"
    yield element("path", class_=look, stroke=colour, d=line(places))
    for (x, y), (_, share) in zip(places, one.points, strict=True):
        words = tooltip(f"{one.name}: {percent(share)}")
        yield element("circle", words, cx=x, cy=y, r=3, fill=colour)


# (strategy, mode) of the lines in the grid's plots.
GRID_LINES = (
    ("random", "exact"),
    ("length", "exact"),
    ("isf", "epoch"),
    ("balanced", "exact"),
    ("balanced", "window"),
)
Json = dict[str, Any]


def waiting(report: Json) -> Json:
    """Return the bars of waiting by strategy."""
    found = report["strategies"]
    rows = [(n, COLOURS[n], found[n]["waiting"], found[n]["interval"]) for n in STRATEGIES]
    return {"chart": both_widths(partial(bars, rows))}


def padding(report: Json) -> Json:
    """Return the bars of padding by strategy."""
    return {"chart": _bars(report, "padding")}


def padded(report: Json) -> Json | None:
    """Return the bars of a padded step's time and the lines to change; None: not asked for."""
    found = report["padded"]
    if found is None:
        return None
    colours = {"random": "--random", "equal": "--length", "free": "--balanced"}
    rows = [(name, colours[name], found["time"][name], 0.0) for name in colours]
    return {"chart": both_widths(partial(bars, rows)), "advice": padded_advice(found)}


def padded_advice(found: Json) -> list[str]:
    """Return the line to change in a loop that pads, and that for loops that weigh alike.

    >>> padded_advice({"change": "", "change_equal": ""})
    ['No plan gains 3 %: more accumulation, or mode="window", may']
    """
    best, equal = found["change"], found["change_equal"]
    if not best:
        return ['No plan gains 3 %: more accumulation, or mode="window", may']
    if best == equal:
        return [f"The line to change: {best}"]
    lines = [f"The line to change, in a loop that weighs microbatches (scale_loss): {best}"]
    return lines + ([f"In a loop that weighs them alike: {equal}"] if equal else [])


def images(report: Json) -> Json:
    """Return the bars of microbatches without images, None if the data have no tiles."""
    return {"chart": _bars(report, "no_images") if "tiles" in report["resources"] else None}


def grid(report: Json) -> Json:
    """Return rows of plots against accumulate, a column for each number of ranks.

    The first row is efficiency, the others DistRatio of each resource. No rows where no number of
    ranks has two points.
    """
    cells = report["grid"]["cells"]
    points: dict[int, set[int]] = {}
    for cell in cells:
        points.setdefault(cell["ranks"], set()).add(cell["accumulate"])
    ranks = [count for count in sorted(points) if len(points[count]) > 1]
    names = ("", *report["budgets"]["resources"]) if ranks else ()
    return {"rows": [_grid_row(cells, ranks, name) for name in names], "lines": GRID_LINES}


def host(report: Json) -> Json:
    """Return how many worker processes the modelled speed takes, None if that is not known."""
    workers = report["host"].get("workers")
    return {"workers": None if workers is None else max(1, math.ceil(workers))}


def pipelines(report: Json) -> Json:
    """Return the highest throughput of a schedule, the scale of the bars."""
    schedules = report["pipelines"].get("schedules", [])
    return {"fastest": max((one["balanced"]["samples_per_s"] for one in schedules), default=1.0)}


def sensitivity(report: Json) -> Json:
    """Return the plot of waiting against the error of the costs."""
    found = report["sensitivity"]
    errors = [one["error"] for one in found]
    top = round_up(max(0.02, *(one["waiting"] for one in found)))
    line = Line("balanced", "--balanced", [(one["error"], one["waiting"]) for one in found])
    draw = partial(
        line_plot, [line], "Waiting", errors, top, "costs known up to",
        tick_text=lambda error: f"± {100 * error:.0f} %",
    )  # fmt: skip
    return {"chart": both_widths(draw)}


def _bars(report: Json, figure: str) -> Markup:
    found = report["strategies"]
    rows = [(name, COLOURS[name], found[name][figure], 0.0) for name in STRATEGIES]
    return both_widths(partial(bars, rows))


def _grid_row(cells: list[Json], ranks: list[int], resource: str) -> list[Markup]:
    """Return one plot for each number of ranks, of a resource's DistRatio or of efficiency ("")."""
    title, top = "efficiency", 1.0
    if resource:
        title = f"DistRatio of {resource}"
        top = round_up(max(0.1, *(_value(cell, resource) for cell in cells)))
    ticks = sorted({cell["accumulate"] for cell in cells})
    # As wide as its column on the whole page: what is scaled down has small letters.
    width = {1: 540, 2: 540, 3: 385}.get(len(ranks), 280)
    plots = []
    for count in ranks:
        drawn = [_line(cells, count, name, mode, resource) for name, mode in GRID_LINES]
        known = [line for line in drawn if line.points]
        draw = partial(line_plot, known, f"{title}, {count} ranks", ticks, top, "accumulate")
        plots.append(both_widths(draw, width))
    return plots


def _line(cells: list[Json], ranks: int, name: str, mode: str, resource: str) -> Line:
    mine = [c for c in cells if (c["ranks"], c["strategy"], c["mode"]) == (ranks, name, mode)]
    mine.sort(key=lambda cell: int(cell["accumulate"]))
    points = [(cell["accumulate"], _value(cell, resource)) for cell in mine]
    halves = [] if resource else [cell["interval"] for cell in mine]
    dashed = (name, mode) == ("balanced", "window")
    return Line(f"{name} {mode}", COLOURS[name], points, halves, dashed)


def _value(cell: Json, resource: str) -> float:
    """Return the DistRatio of a resource; efficiency for ""."""
    return float(cell["dist_ratio"][resource] if resource else 1 - cell["waiting"])
