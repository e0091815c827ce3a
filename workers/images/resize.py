"""Resizes RGB images bicubically, with antialiasing, and cuts them into square tiles.

Two libraries do it, and the user says which (ADR 30). Their pictures differ in the last bit of some
pixels, so the one that made a picture is part of a fingerprint. torch's kernel for bytes reads rows
of RGB pixels and writes planes: the payload's own memory, where the picture is one tile. Both first
shrink a picture that is far larger than its target by averaging whole pixels, down to no less than
twice the target (Pillow's `reducing_gap`).
"""

import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ...balancer.near_names import check_name

if TYPE_CHECKING:
    import torch

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
# Writes an image to each place: uint8 (rows, columns, 3, size, size), contiguous.
Resizer = Callable[..., None]
# Pictures are averaged down to no less than this multiple of their target.
GAP = 2.0


def resizer(name: str) -> Resizer:
    """Return a resizer by its name; ValueError for another name.

    >>> resizer("lanczos")
    Traceback (most recent call last):
    ValueError: resize is 'lanczos', allowed are 'torch', 'pillow'
    """
    check_name("resize", name, RESIZERS)
    return RESIZERS[name]


def resizer_facts(name: str, version: str) -> list[str]:
    """Return what decides a resizer's pictures, given the installed version of torch.

    Builds of a version for other devices have the same code for the CPU.

    >>> resizer_facts("torch", "2.13.0+cpu")[:2], resizer_facts("pillow", "2.13.0")
    (['torch', '2.13.0'], ['pillow'])
    """
    return [name, version.partition("+")[0], platform.machine()] if name == "torch" else [name]


def with_torch(image: Image.Image, *places: Pixels) -> None:
    """Resize an RGB image with torch and write it to each place, cut into its tiles."""
    import torch

    sources: dict[tuple[int, int], Any] = {}
    for tiles in places:
        rows, columns, _, size, _ = tiles.shape
        height, width = rows * size, columns * size
        # How many pixels are averaged to one, each way, as Pillow's resize() counts them.
        across = int(image.width / width / GAP) or 1
        down = int(image.height / height / GAP) or 1
        if (across, down) not in sources:
            reduced = image.reduce((across, down)) if max(across, down) > 1 else image
            # A copy: torch warns of memory that is read-only, as Pillow's is.
            pixels = torch.from_numpy(np.array(reduced)).permute(2, 0, 1)[None]
            sources[across, down] = pixels
        is_one = rows * columns == 1
        whole = tiles.reshape(3, size, size) if is_one else np.empty((3, height, width), np.uint8)
        # The last row and column of a reduced picture may stand for less than a whole pixel.
        scales = height * down / image.height, width * across / image.width
        _interpolate(sources[across, down], scales, torch.from_numpy(whole)[None])
        if not is_one:
            squares = whole.reshape(3, rows, size, columns, size)
            tiles[...] = squares.transpose(1, 3, 0, 2, 4)


def _interpolate(source: "torch.Tensor", scales: tuple[float, float], out: "torch.Tensor") -> None:
    """Write a picture (1, 3, h, w) into `out`, `scales` times as high and wide.

    torch.nn.functional.interpolate does the same, but not into memory that is there.
    """
    import torch

    down, across = scales
    resize = torch.ops.aten._upsample_bicubic2d_aa
    height, width = out.shape[2:]
    if down < min(across, 1):
        # The height first: fewer pixels are left for the other pass, which torch would do first.
        source = resize(source, [height, source.shape[3]], False, down, None)
        down = 1.0
    resize.out(source, [height, width], False, down, across, out=out)


def with_pillow(image: Image.Image, *places: Pixels) -> None:
    """Resize an RGB image with Pillow and write it to each place, cut into its tiles."""
    for tiles in places:
        rows, columns, _, size, _ = tiles.shape
        wanted = (columns * size, rows * size)
        fitted = image.resize(wanted, Image.Resampling.BICUBIC, reducing_gap=GAP)
        for band, channel in enumerate(fitted.split()):
            squares = np.asarray(channel).reshape(rows, size, columns, size)
            tiles[:, :, band] = squares.swapaxes(1, 2)


RESIZERS: dict[str, Resizer] = {"torch": with_torch, "pillow": with_pillow}
