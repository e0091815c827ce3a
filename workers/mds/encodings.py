"""Decodes MDS values from bytes, within the bytes that there are; nothing is ever unpickled.

Images are not decoded: they come as files, so that transforms and probes find what they find in a
tar. `pil` has bare pixels, of which an uncompressed PNG is made. Layouts, all little-endian:

    ndarray         [dtype u8, unless in the name] [axes << 2 | log2 of size's bytes] [sizes] values
    pil             width u32, height u32, length of the mode u32, mode, pixels
    list[image]     0 u32, count u32, lengths u32 each, images; jpeg_array: without the 0
"""

import io
import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
from PIL import Image

from ..tar.members import decode_member

NAMES = "uint8 int8 uint16 int16 float16 uint32 int32 float32 uint64 int64 float64".split()  # noqa: SIM905
DTYPES = dict(zip((8, 9, 16, 17, 18, 32, 33, 34, 64, 65, 66), NAMES, strict=True))
NUMBERS = {"int": "int64", **dict(zip(NAMES, NAMES, strict=True))}
IMAGES = ("jpeg", "png", "pil")
LISTS = {f"list[{name}]": name for name in IMAGES} | {"jpeg_array": "jpeg", "jpegarray": "jpeg"}
TEXTS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "str_int": int,
    "str_float": float,
    "str_decimal": Decimal,
}
PLAIN = ("bytes", "json", *NUMBERS, *TEXTS, *IMAGES, *LISTS)
# What Pillow writes as PNG without change.
MODES = ("1", "L", "LA", "RGB", "RGBA", "I;16")
Array = np.ndarray[Any, Any]


def checked_encoding(name: str) -> str:
    """Return an encoding's name; ValueError for pickle, and for one that is not known."""
    if name == "pkl":
        raise ValueError("has a column of pickles, which are refused, since unpickling runs code")
    kind, _, shape_text = name.partition(":")
    if name not in PLAIN and not (kind == "ndarray" and _parse_static(shape_text) is not None):
        raise ValueError(f"has a column encoded as {name!r:.80}, which is not known here")
    return name


def _parse_static(text: str) -> tuple[str, tuple[int, ...]] | None:
    """Return dtype and shape that an encoding's name has, "" and () for none; None if wrong."""
    dtype, _, sizes = text.partition(":")
    if dtype and dtype not in NAMES:
        return None
    axes = sizes.split(",") if sizes else []
    return (dtype, tuple(map(int, axes))) if all(map(str.isdecimal, axes)) else None


def decode_value(encoding: str, data: bytes) -> Any:
    """Return a value that is no image; ValueError where the bytes are none of that encoding.

    >>> decode_value("str", b"hi"), decode_value("int", bytes([7]) + bytes(7))
    ('hi', 7)
    """
    if encoding == "bytes":
        return data
    if encoding == "json":
        return decode_member("json", data)
    if encoding in NUMBERS:
        (value,) = np.frombuffer(data, np.dtype(NUMBERS[encoding]).newbyteorder("<")).tolist()
        return value
    if encoding in TEXTS:
        try:
            return TEXTS[encoding](data.decode())
        except InvalidOperation:
            raise ValueError(f"{data!r:.40} is no number") from None
    return _decode_array(encoding.partition(":")[2], data)


def _decode_array(static: str, data: bytes) -> Array:
    dtype, shape = _parse_static(static) or ("", ())
    at = 0
    if not dtype:
        dtype, at = DTYPES.get(data[0], "") if data else "", 1  # told by the first byte
    if not shape:
        axes, width = divmod(data[at], 4) if len(data) > at else (0, 0)
        stop = at + 1 + (axes << width)
        shape = tuple(np.frombuffer(data[at + 1 : stop], f"<u{1 << width}").tolist())
        at = stop
    kind = np.dtype(dtype).newbyteorder("<") if dtype else None
    if kind is None or math.prod(shape) * kind.itemsize != len(data) - at:
        raise ValueError(f"{len(data)} bytes are no array {dtype or '?'} {shape!s:.80}")
    return np.frombuffer(data, kind, offset=at).reshape(shape).copy()


def image_files(encoding: str, data: bytes) -> list[bytes]:
    """Return the files of an image's or a list's bytes; ValueError where there are none."""
    if encoding == "pil":
        return [_encode_png(data)]
    if encoding not in LISTS:
        return [data]
    start = 4 if encoding.startswith("list") else 0
    count = int.from_bytes(data[start : start + 4], "little")
    at = start + 4 + 4 * count
    if at > len(data):
        raise ValueError(f"{len(data)} bytes do not hold the lengths of {count} images")
    sizes = np.frombuffer(data[start + 4 : at], "<u4").tolist()
    if at + sum(sizes) != len(data):
        raise ValueError(f"{len(data)} bytes are not those of {count} images of {sum(sizes)} bytes")
    files = list[bytes]()
    for size in sizes:
        files += image_files(LISTS[encoding], data[at : at + size])
        at += size
    return files


def _encode_png(data: bytes) -> bytes:
    width, height, letters = np.frombuffer(data[:12], "<u4").tolist()
    mode, pixels = data[12 : 12 + letters].decode("ascii", "replace"), data[12 + letters :]
    if mode not in MODES:
        raise ValueError(f"pixels of mode {mode!r:.20}; read are {', '.join(MODES)}")
    if not 0 < width * height <= 8 * len(pixels):
        raise ValueError(f"{len(pixels)} bytes are not the pixels of {width}x{height}")
    file = io.BytesIO()
    Image.frombytes(mode, (width, height), pixels).save(file, "png", compress_level=0)
    return file.getvalue()
