"""Opens the images of records: pixels, or the size alone from a file's header.

An image is one of Pillow's, an array uint8 (height, width, 3), or a file (files.py).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..images.decode import image_size, open_image, to_rgb
from .files import found_file

Size = tuple[int, int]


def open_pixels(image: Any, record: Mapping[str, Any], root: Path | None, most: int) -> Image.Image:
    """Return an image in mode RGB, of a file upright; ValueError says what is wrong with it.

    root: the folder of files that records name; most: the pixels that an image may have.
    """
    found = _found(image, record, root)
    return to_rgb(found) if isinstance(found, Image.Image) else open_image(found, most).decode()


def read_size(image: Any, record: Mapping[str, Any], root: Path | None, most: int) -> Size:
    """Return (width, height) in pixels of what `open_pixels` returns; a file's from its header."""
    found = _found(image, record, root)
    return found.size if isinstance(found, Image.Image) else image_size(found, most)


def _found(image: Any, record: Mapping[str, Any], root: Path | None) -> Any:
    """Return one of Pillow's images, bytes, an open file or a path."""
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3:
            raise ValueError(
                f"an image is an array {image.dtype} {image.shape}, needed is uint8 "
                "(height, width, 3)"
            )
        return Image.fromarray(image)
    return found_file(image, record, root, "an image")
