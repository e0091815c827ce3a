"""Converts every Pillow mode to RGB: scales depths without wrapping, composites alpha on white.

Integers and floats deeper than 8 bits carry no range of their own. `I;16` is scaled by 65535;
`I` and `F` by the smallest usual range that holds their values (F: 1, 255; both: 65535), else by
their own minimum and maximum.
"""

from typing import Any

import numpy as np
from PIL import Image

Floats = np.ndarray[Any, np.dtype[np.float64]]
WHITE = (255, 255, 255)


def to_rgb(image: Image.Image) -> Image.Image:
    """Return a loaded image in mode RGB."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode[:1] in ("I", "F"):
        return Image.fromarray(_scaled(image)).convert("RGB")
    if image.has_transparency_data:
        return _on_white(image)
    return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    # convert() copies even where nothing is to be done
    rgba = image if image.mode == "RGBA" else image.convert("RGBA")
    alpha = rgba.getchannel("A")
    if alpha.getextrema() == (255, 255):
        return rgba.convert("RGB")
    white = Image.new("RGB", rgba.size, WHITE)
    white.paste(rgba, mask=alpha)
    return white


def _scaled(image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return uint8 (height, width) of a 16-bit, 32-bit or float image."""
    deep = np.asarray(image)
    if image.mode.startswith("I;16"):
        grey = ((deep.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    else:
        grey = _by_range(deep.astype(np.float64), image.mode).astype(np.uint8)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        grey[deep == clear] = 255
    return grey


def _by_range(values: Floats, mode: str) -> Floats:
    """Return values in 0..255."""
    finite: Floats = np.nan_to_num(values, nan=0.0)
    low, high = float(finite.min()), float(finite.max())
    usual = (1.0, 255.0, 65535.0) if mode == "F" else (65535.0,)
    for top in usual:
        if low >= 0 and high <= top:
            finite *= 255 / top
            return finite.round()
    finite -= low
    finite *= 255 / max(high - low, 1e-300)
    return finite.round()
