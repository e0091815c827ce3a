"""Finds the file that a record means, and opens its images: pixels, or the size from a header.

A file is bytes, an open file, a mapping, a data: URL, or a name: of a member of the tar's sample,
or of a file below a folder that the user has given. Nothing is fetched. An image may also be one of
Pillow's, or an array uint8 (height, width, 3).
"""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..images.decode import image_size, open_image, to_rgb

Size = tuple[int, int]
# What else is known of some.
_ALSO = {
    "an image": "Pillow's images, arrays uint8 (height, width, 3), ",
    "a sound": "arrays float (samples,), ",
}


def open_pixels(image: Any, record: Mapping[str, Any], root: Path | None, most: int) -> Image.Image:
    """Return an image in mode RGB, of a file upright; ValueError says what is wrong with it.

    root: the folder of files that records name; most: the pixels that an image may have.
    """
    source = _find_image(image, record, root)
    return to_rgb(source) if isinstance(source, Image.Image) else open_image(source, most).decode()


def read_size(image: Any, record: Mapping[str, Any], root: Path | None, most: int) -> Size:
    """Return (width, height) in pixels of what `open_pixels` returns; a file's from its header."""
    source = _find_image(image, record, root)
    return source.size if isinstance(source, Image.Image) else image_size(source, most)


def _find_image(image: Any, record: Mapping[str, Any], root: Path | None) -> Any:
    if isinstance(image, Image.Image):
        return image
    if not isinstance(image, np.ndarray):
        return find_file(image, record, root, "an image")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3:
        raise ValueError(
            f"an image is an array {image.dtype} {image.shape}, needed is uint8 (height, width, 3)"
        )
    return Image.fromarray(image)


def find_file(value: Any, record: Mapping[str, Any], root: Path | None, kind: str) -> Any:
    """Return bytes, an open file or a path, or whatever a record has under the name.

    kind: "an image", "a video", "a sound", for errors. root: the folder of files that records name.
    Raises ValueError for anything else, and for files that may not be read.
    """
    if isinstance(value, bytes) or hasattr(value, "read"):
        return value
    if isinstance(value, Mapping) and (value.get("bytes") or value.get("path")):
        return find_file(value.get("bytes") or value["path"], record, root, kind)
    if not isinstance(value, str | Path):
        raise ValueError(
            f"{kind} is a {type(value).__name__}; known are {_ALSO.get(kind, '')}bytes, files, "
            "mappings of bytes or path, paths, data: URLs and names of members"
        )
    # A text is one of four: data, a member of the sample, something elsewhere, a file of a folder.
    name = str(value)
    if name.startswith("data:"):
        return decode_url(name, kind)
    if (member := _member(name, record)) is not None:
        return member
    if "://" in name and not name.startswith("file://"):
        raise ValueError(
            f"{kind} is at {name!r:.120}, and nothing is fetched: put it beside the records "
            "(as a member of the tar, in a column, or as a file below media_root=)"
        )
    if root is None:
        raise ValueError(
            f"{kind} is the file {name!r:.120}: give media_root=, the folder that the paths of "
            "records are in"
        )
    path = (root / name.removeprefix("file://")).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ValueError(f"{kind} is the file {name!r:.120}, which is not below {root}")
    if not path.is_file():
        raise ValueError(f"{kind} is the file {name!r:.120}, and there is none below {root}")
    return path


def decode_url(url: str, kind: str) -> bytes:
    """Return the bytes in a data: URL; ValueError for one that is not of base64."""
    head, _, body = url.partition(",")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{kind} {head!r:.40} is no base64: {error}") from None


def _member(name: str, record: Mapping[str, Any]) -> Any:
    """Return the member that a name means: its extension, or the file as it was in the tar."""
    key = record.get("__key__")
    if key is None:
        return None
    if name in record:
        return record[name]
    # dir/cat.img0.jpg is img0.jpg of the sample dir/cat; records name it with folder or without
    base, prefix = name.rpartition("/")[2], f"{str(key).rpartition('/')[2]}."
    return record.get(base.removeprefix(prefix).lower()) if base.startswith(prefix) else None
