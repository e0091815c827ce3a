"""Draws the sections about the data: budgets, costs, counts by source, the heaviest samples."""

from collections.abc import Iterator
from functools import partial
from math import ceil, log1p
from typing import Any

from markupsafe import Markup

from ....sched.render.elements import (
    Scale,
    element,
    inline,
    labels_below,
    line,
    text,
    tooltip,
)
from .bars import both_widths

LEFT, BOTTOM = 40, 38
# The heat map. Steps of colour, --heat-0 to --heat-4 in the style sheet.
LEVELS = 5
MAP_TOP, MAP_RIGHT = 24, 12
TALLEST_ROW, TALLEST_MAP = 20.0, 300
LABELS = 6
Json = dict[str, Any]


def budgets(report: Json) -> Json:
    """Return the budgets given, one for each resource; None if they are the search's."""
    found = report["budgets"]
    recommended = report["recommended"]["balance"]["budgets"]
    chosen = [recommended[name] for name in found["resources"]]
    return {"chosen": chosen if chosen != list(found["searched"]["budgets"]) else None}


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
        *(text(LEFT - 7, up(value) + 4, words, anchor="end") for value, words in tile_labels),
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
