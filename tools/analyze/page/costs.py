"""Draws the sections about the data: budgets, costs, counts by source, the heaviest samples."""

from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil, log1p
from typing import Any

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
from .bars import both_widths, percent, whole

LEFT, BOTTOM = 40, 38
# The chart of budgets.
HEIGHT, TOP, RIGHT = 290, 10, 20
# The heat map. Steps of colour, --heat-0 to --heat-4 in the style sheet.
LEVELS = 5
MAP_TOP, MAP_RIGHT = 24, 12
TALLEST_ROW, TALLEST_MAP = 20.0, 300
LABELS = 6
Json = dict[str, Any]
# Budgets to point out: a name, a CSS colour, tokens and tiles.
Mark = tuple[str, str, int, int]


def budgets(report: Json) -> Json:
    """Return the chart of feasible budgets, and the budgets given if they differ from the search's.

    chosen: one budget for each resource, or None.
    """
    found = report["budgets"]
    recommended = report["recommended"]["balance"]["budgets"]
    chosen = [recommended[name] for name in found["resources"]]
    return {
        "chart": both_widths(partial(_frontier, found)) if found["frontier"] else None,
        "chosen": chosen if chosen != list(found["searched"]["budgets"]) else None,
    }


def costs(report: Json) -> Json:
    """Return the heat map of tiles and tokens, if both are there."""
    joint, limits = report["joint"], report["recommended"]["balance"]["budgets"]
    chart = None
    if joint:
        limit = (limits["tiles"], limits["tokens"]) if "tiles" in limits else None
        chart = both_widths(partial(_heat_map, joint, limit))
    is_sample = any("intervals" in cost for cost in report["resources"].values())
    return {"chart": chart, "is_sample": is_sample}


def heaviest(report: Json) -> Json:
    """Return the scale of the heaviest samples' bars."""
    return {"heaviest_sample": _most(report["heaviest"]["samples"])}


def _most(rows: list[Json]) -> float:
    return max([1.0, *(float(row["times_mean"]) for row in rows)])


def _frontier(found: Json, width: int) -> Markup:
    """Return the chart of what fits in memory, with OmniBal's and the searched budgets marked."""
    j, k = found["resources"].index("tokens"), found["resources"].index("tiles")
    searched, omnibal = found["searched"]["budgets"], found["omnibal"]["budgets"]
    marks: list[Mark] = [
        ("searched", "--balanced", searched[j], searched[k]),
        ("OmniBal", "--random", omnibal[j], omnibal[k]),
    ]
    if searched == omnibal:
        marks = [("both", "--balanced", searched[j], searched[k])]
    # (tokens, most tiles that fit beside them), tokens ascending
    border: list[tuple[int, int]] = found["frontier"]
    points = [*border, *((tokens, tiles) for *_, tokens, tiles in marks)]
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
    ]
    for one in found["tried"]:
        tokens, tiles = one["budgets"][j], one["budgets"][k]
        # Those beyond the axes are left out.
        if tokens <= across.high and tiles <= up.high:
            words = f"{tiles} tiles, {tokens:,} tokens: waiting {percent(one['waiting'])}, "
            words += f"time {whole(one['time'])}"
            x, y = across(tokens), up(tiles)
            pieces.append(element("circle", tooltip(words), class_="trial", cx=x, cy=y, r=3.5))
    highest = max(tiles for *_, tiles in marks)
    for mark in marks:
        pieces += _mark(mark, across, up, above=mark[3] >= highest)
    label = "budgets of tiles and tokens that fit in memory"
    return Markup(inline(width, HEIGHT, pieces, label=label))


def _feasible(border: Sequence[tuple[int, int]], across: Scale, up: Scale) -> Iterator[str]:
    """Yield the area below the border."""
    upper = [(across(tokens), up(tiles)) for tokens, tiles in border]
    right, foot = upper[-1][0], up(0)
    area = line([(across(0), foot), *upper, (right, foot)], close=True)
    yield element("path", class_="area", d=area)
    yield element("path", class_="line", stroke="var(--balanced)", d=line(upper))
    yield text(right - 8, foot - 8, "fits in memory", "halo", anchor="end")


def _mark(mark: Mark, across: Scale, up: Scale, above: bool) -> Iterator[str]:
    """Yield a dot and its label, which extends toward the middle of the chart."""
    name, colour, tokens, tiles = mark
    x, y = across(tokens), up(tiles)
    yield element("circle", cx=x, cy=y, r=6, fill=f"var({colour})")
    words = f"{name}: {tiles} tiles, {tokens:,} tokens"
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


def _heat_map(joint: Json, budgets: tuple[int, int] | None, width: int) -> Markup:
    """Return samples by tokens and tiles; the colour is the logarithm of the count.

    joint: edges of `tokens` and `tiles`, ascending and evenly spaced; counts[k][j] samples of
    tiles[k] to tiles[k + 1] tiles and as many tokens by j. budgets: (tiles, tokens).
    """
    tokens, tiles = joint["tokens"], joint["tiles"]
    columns, rows = len(tokens) - 1, len(tiles) - 1
    foot = MAP_TOP + rows * min(TALLEST_ROW, TALLEST_MAP / rows)
    across = Scale(tokens[0], tokens[-1], start=LEFT, end=width - MAP_RIGHT)
    up = Scale(tiles[0], tiles[-1], start=foot, end=MAP_TOP)
    token_labels = [(edge, f"{edge:,}") for edge in tokens[:: max(1, columns // LABELS)]]
    # A row's label stands at the middle of the row: it says which tiles, not an edge.
    half = (tiles[1] - tiles[0]) / 2
    tile_labels = [(edge + half, f"{edge}") for edge in tiles[: -1 : ceil(rows / LABELS)]]
    pieces = [
        *_cells(joint, across, up),
        element("path", class_="axis", d=line([(LEFT, foot), (width - MAP_RIGHT, foot)])),
        *labels_below(across, token_labels, foot + 16),
        *labels_left(up, tile_labels, LEFT - 7),
        text((LEFT + width - MAP_RIGHT) / 2, foot + BOTTOM - 4, "tokens", anchor="middle"),
        text(0, 11, "tiles"),
    ]
    if budgets is not None:
        # A sample of exactly the budget fits, so the line runs above its row.
        right, top = across(budgets[1]), up(budgets[0] + 1)
        border = line([(LEFT, top), (right, top), (right, foot)])
        pieces.append(element("path", class_="line dashed", stroke="var(--random)", d=border))
        pieces.append(text(right - 6, top + 14, "budget", "strong halo", anchor="end"))
    label = "number of samples by tiles and tokens"
    return Markup(inline(width, round(foot + BOTTOM), pieces, label=label))


def _cells(joint: Json, across: Scale, up: Scale) -> Iterator[str]:
    """Yield a rectangle for each cell that holds samples, with its count as tooltip."""
    tokens, tiles, counts = joint["tokens"], joint["tiles"], joint["counts"]
    most = log1p(max(max(row) for row in counts))
    for k, row in enumerate(counts):
        for j, count in enumerate(row):
            if not count:
                continue
            left, top = across(tokens[j]), up(tiles[k + 1])
            level = min(LEVELS - 1, int(log1p(count) / most * LEVELS))
            yield element(
                "rect",
                tooltip(f"{tiles[k]}+ tiles, {tokens[j]:,}+ tokens: {count:,} samples"),
                x=left,
                y=top,
                # a pixel less each way leaves a gap between cells
                width=across(tokens[j + 1]) - left - 1,
                height=up(tiles[k]) - top - 1,
                fill=f"var(--heat-{level})",
            )
