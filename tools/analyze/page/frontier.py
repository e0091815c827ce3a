"""Draws which budgets of tiles and tokens fit in memory, and the budgets that were tried."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ....sched.render.elements import (
    Scale,
    element,
    inline,
    labels_below,
    labels_left,
    line,
    text,
    tooltip,
)

HEIGHT = 290
LEFT, TOP, BOTTOM, RIGHT = 40, 10, 38, 20


@dataclass(frozen=True, slots=True)
class Mark:
    """Budgets to point out: a name, a CSS colour, tokens and tiles."""

    name: str
    colour: str
    tokens: int
    tiles: int


@dataclass(frozen=True, slots=True)
class TriedBudgets:
    """Budgets that the search tried, with the words of their tooltip."""

    tokens: int
    tiles: int
    words: str


def frontier_chart(
    border: Sequence[tuple[int, int]],
    marks: Sequence[Mark],
    trials: Sequence[TriedBudgets],
    width: int = 560,
) -> Markup:
    """Return the chart. border: (tokens, most tiles that fit beside them), tokens ascending."""
    points = [*border, *((mark.tokens, mark.tiles) for mark in marks)]
    right, foot = width - RIGHT, HEIGHT - BOTTOM
    # Some room above and beside the outermost point, for its label.
    across = Scale(0, max(x for x, _ in points) * 1.06 or 1, start=LEFT, end=right)
    up = Scale(0, max(y for _, y in points) * 1.25 or 1, start=foot, end=TOP)
    token_labels = [(tokens, f"{_two_digits(tokens):,}") for tokens in across.ticks(5)]
    axis = line([(LEFT, TOP), (LEFT, foot), (right, foot)])
    pieces = [
        *_feasible(border, across, up),
        *labels_below(across, token_labels, foot + 16),
        *labels_left(up, [(tiles, f"{tiles:.0f}") for tiles in up.ticks(5)], LEFT - 7),
        element("path", class_="axis", d=axis),
        text((LEFT + right) / 2, HEIGHT - 3, "budget of tokens", anchor="middle"),
        text(LEFT + 6, TOP + 8, "budget of tiles"),
        *_trials(trials, across, up),
    ]
    highest = max(mark.tiles for mark in marks)
    for mark in marks:
        pieces += _mark(mark, across, up, above=mark.tiles >= highest)
    label = "budgets of tiles and tokens that fit in memory"
    return Markup(inline(width, HEIGHT, pieces, label=label))


def _feasible(border: Sequence[tuple[int, int]], across: Scale, up: Scale) -> Iterator[str]:
    """Yield the area below the border."""
    if not border:
        return
    upper = [(across(tokens), up(tiles)) for tokens, tiles in border]
    right, foot = upper[-1][0], up(0)
    area = line([(across(0), foot), *upper, (right, foot)], close=True)
    yield element("path", class_="area", d=area)
    yield element("path", class_="line", stroke="var(--balanced)", d=line(upper))
    yield text(right - 8, foot - 8, "fits in memory", "halo", anchor="end")


def _trials(trials: Sequence[TriedBudgets], across: Scale, up: Scale) -> Iterator[str]:
    """Yield a dot for each budget tried; those beyond the axes are left out."""
    for trial in trials:
        if trial.tokens <= across.high and trial.tiles <= up.high:
            x, y = across(trial.tokens), up(trial.tiles)
            yield element("circle", tooltip(trial.words), class_="trial", cx=x, cy=y, r=3.5)


def _mark(mark: Mark, across: Scale, up: Scale, above: bool) -> Iterator[str]:
    """Yield a dot and its label, which extends toward the middle of the chart."""
    x, y = across(mark.tokens), up(mark.tiles)
    yield element("circle", cx=x, cy=y, r=6, fill=f"var({mark.colour})")
    words = f"{mark.name}: {mark.tiles} tiles, {mark.tokens:,} tokens"
    at_right = x > (LEFT + across.end) / 2
    # Marks may be close to each other: the highest is labelled above, the others below.
    yield text(
        x - 11 if at_right else x + 11,
        y - 9 if above else y + 18,
        words,
        "strong halo",
        anchor="end" if at_right else "",
    )


def _two_digits(value: float) -> int:
    """Return a number with two significant digits, for ticks.

    >>> _two_digits(2_653)
    2700
    """
    size = 10 ** max(0, len(str(int(value))) - 2)
    return int(round(value / size) * size)
