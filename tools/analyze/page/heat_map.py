"""Draws the joint histogram of tiles and tokens as a heat map, with the budgets as lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, log1p

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

# Steps of colour, --heat-0 to --heat-4 in the style sheet.
LEVELS = 5
LEFT, TOP, BOTTOM, RIGHT = 40, 24, 38, 12
TALLEST_ROW, TALLEST_MAP = 20.0, 300
LABELS = 6


@dataclass(frozen=True, slots=True)
class Histogram:
    """Samples by tokens and tiles. Edges are ascending and evenly spaced.

    counts[k][j]: samples of tile_edges[k] to tile_edges[k + 1] tiles and as many tokens by j.
    """

    token_edges: Sequence[int]
    tile_edges: Sequence[int]
    counts: Sequence[Sequence[int]]


def heat_map(histogram: Histogram, budgets: tuple[int, int] | None, width: int = 560) -> Markup:
    """Return the map; the colour is the logarithm of the count. budgets: (tiles, tokens)."""
    tokens, tiles = histogram.token_edges, histogram.tile_edges
    columns, rows = len(tokens) - 1, len(tiles) - 1
    foot = TOP + rows * min(TALLEST_ROW, TALLEST_MAP / rows)
    across = Scale(tokens[0], tokens[-1], start=LEFT, end=width - RIGHT)
    up = Scale(tiles[0], tiles[-1], start=foot, end=TOP)
    token_labels = [(edge, f"{edge:,}") for edge in tokens[:: max(1, columns // LABELS)]]
    # A row's label stands at the middle of the row: it says which tiles, not an edge.
    half = (tiles[1] - tiles[0]) / 2
    tile_labels = [(edge + half, f"{edge}") for edge in tiles[: -1 : ceil(rows / LABELS)]]
    pieces = [
        *_cells(histogram, across, up),
        element("path", class_="axis", d=line([(LEFT, foot), (width - RIGHT, foot)])),
        *labels_below(across, token_labels, foot + 16),
        *labels_left(up, tile_labels, LEFT - 7),
        text((LEFT + width - RIGHT) / 2, foot + BOTTOM - 4, "tokens", anchor="middle"),
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


def _cells(histogram: Histogram, across: Scale, up: Scale) -> Iterator[str]:
    """Yield a rectangle for each cell that holds samples, with its count as tooltip."""
    tokens, tiles = histogram.token_edges, histogram.tile_edges
    most = log1p(max(max(row) for row in histogram.counts))
    for k, row in enumerate(histogram.counts):
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
