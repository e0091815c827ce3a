"""Opens the images of records: pixels, or the size alone from a file's header.

An image is one of Pillow's, an array uint8 (height, width, 3), bytes, an open file, a mapping with
`bytes` or `path` (as Hugging Face's data sets have them undecoded), a data: URL, or a text that
names a member of the sample or a file below a folder that the user has given. Nothing is fetched.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from ..images.decode import image_size, open_image, to_rgb

Size = tuple[int, int]


def open_pixels(image: Any, record: Mapping[str, Any], root: Path | None, most: int) -> Image.Image:
    """Return an image in mode RGB, of a file upright; ValueError says what is wrong with it.

    root: the folder of files that records name; most: the pixels that an image may have.
    """
    found = _found(image, record, root)
    if isinstance(found, Image.Image):
        return to_rgb(found)
    with _opened(found) as file:
        return open_image(file, most).decode()


def read_size(image: Any, record: Mapping[str, Any], root: Path | None, most: int) -> Size:
    """Return (width, height) in pixels of what `open_pixels` returns; a file's from its header."""
    found = _found(image, record, root)
    if isinstance(found, Image.Image):
        return found.size
    with _opened(found) as file:
        return image_size(file, most)


@contextmanager
def _opened(file: Any) -> Iterator[bytes | BinaryIO]:
    if isinstance(file, Path):
        with file.open("rb") as opened:
            yield opened
    else:
        yield file


def _found(image: Any, record: Mapping[str, Any], root: Path | None) -> Any:
    """Return one of Pillow's images, bytes, an open file or a path."""
    if isinstance(image, Image.Image | bytes):
        return image
    if isinstance(image, Mapping) and (image.get("bytes") or image.get("path")):
        return _found(image.get("bytes") or image["path"], record, root)
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3:
            raise ValueError(
                f"an image is an array {image.dtype} {image.shape}, needed is uint8 "
                "(height, width, 3)"
            )
        return Image.fromarray(image)
    if hasattr(image, "read"):
        return image
    if isinstance(image, str | Path):
        return _named(str(image), record, root)
    raise ValueError(
        f"an image is a {type(image).__name__}; known are Pillow's images, arrays, bytes, files, "
        "paths, data: URLs and names of members"
    )


def _named(name: str, record: Mapping[str, Any], root: Path | None) -> Any:
    if name.startswith("data:"):
        head, _, body = name.partition(",")
        try:
            return base64.b64decode(body, validate=True)
        except binascii.Error as error:
            raise ValueError(f"an image {head!r:.40} is no base64: {error}") from None
    member = _member(name, record)
    if member is not None:
        return member
    if "://" in name and not name.startswith("file://"):
        raise ValueError(
            f"an image is at {name!r:.120}, and nothing is fetched: put images beside the records "
            "(as members of the tar, in a column, or as files below image_root=)"
        )
    if root is None:
        raise ValueError(
            f"an image is the file {name!r:.120}: give image_root=, the folder that the paths of "
            "records are in"
        )
    path = (root / name.removeprefix("file://")).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ValueError(f"an image is the file {name!r:.120}, which is not below {root}")
    if not path.is_file():
        raise ValueError(f"an image is the file {name!r:.120}, and there is none below {root}")
    return path


def _member(name: str, record: Mapping[str, Any]) -> Any:
    """Return the member that a name means: its extension, or the file as it was in the tar."""
    key = record.get("__key__")
    if key is None:
        return None
    if name in record:
        return record[name]
    # dir/cat.img0.jpg is img0.jpg of the sample dir/cat; records name it with folder or without
    base, own = name.rpartition("/")[2], f"{str(key).rpartition('/')[2]}."
    return record.get(base.removeprefix(own).lower()) if base.startswith(own) else None
