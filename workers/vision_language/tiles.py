"""Cuts an image into a grid of square tiles, and adds a thumbnail if there are several.

After InternVL 1.5 (Chen et al. 2024, section 3.2) and its published preprocessing: of all grids
with at most `max_tiles` squares, the one whose shape is nearest to the image's; of grids of the
same shape, the larger one where the image has more than half its pixels.
"""

from bisect import bisect
from functools import lru_cache

from PIL import Image

from ..images.resize import Pixels, Resizer


def grid(width: int, height: int, tile_size: int = 448, max_tiles: int = 12) -> tuple[int, int]:
    """Return (columns, rows) for an image of width x height pixels.

    >>> grid(448, 448), grid(800, 400), grid(800, 1200), grid(4000, 1000)
    ((1, 1), (2, 1), (2, 3), (4, 1))
    """
    aspect = width / height
    ratios, between = _by_ratio(max_tiles)
    best, nearest = (1, 1), float("inf")
    for columns, rows in between[bisect(ratios, aspect)]:
        distance = abs(aspect - columns / rows)
        fills = width * height > 0.5 * tile_size * tile_size * columns * rows
        if distance < nearest or (distance == nearest and fills):
            best, nearest = (columns, rows), distance
    return best


def tile_count(shape: tuple[int, int], thumbnail: bool = True) -> int:
    """Return the number of tiles of a grid, its thumbnail included.

    >>> tile_count((1, 1)), tile_count((2, 3)), tile_count((2, 3), thumbnail=False)
    (1, 7, 6)
    """
    count = shape[0] * shape[1]
    return count + (thumbnail and count > 1)


def cut(image: Image.Image, shape: tuple[int, int], out: Pixels, resize: Resizer) -> None:
    """Resize an RGB image to a grid and write its tiles, row by row, into `out`.

    `out` is uint8 (tiles, 3, size, size); one place more than the grid has is for the thumbnail.
    """
    columns, rows = shape
    squares = (3, *out.shape[-2:])
    places = [out[: rows * columns].reshape(rows, columns, *squares)]
    if len(out) > columns * rows:
        places.append(out[-1].reshape(1, 1, *squares))
    resize(image, *places)


@lru_cache(maxsize=64)
def _by_ratio(max_tiles: int) -> tuple[list[float], list[list[tuple[int, int]]]]:
    """Return the ratios of all grids, sorted, and the grids at both ends of each gap between them.

    Grids are sorted by area, then by columns, so that the choice is defined.
    """
    grids: dict[float, list[tuple[int, int]]] = {}
    for columns in range(1, max_tiles + 1):
        for rows in range(1, max_tiles // columns + 1):
            grids.setdefault(columns / rows, []).append((columns, rows))
    ratios = sorted(grids)
    shapes = [grids[ratio] for ratio in ratios]
    ends = zip([[], *shapes], [*shapes, []], strict=True)
    between = [sorted(low + high, key=lambda one: (one[0] * one[1], one)) for low, high in ends]
    return ratios, between
