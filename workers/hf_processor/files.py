"""Finds the file that a record means: bytes, an open file, a mapping, a data: URL, or a name.

A name is that of a member of the tar's sample, or of a file below a folder that the user has given.
Nothing is fetched.
"""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What else is known of some.
_ALSO = {
    "an image": "Pillow's images, arrays uint8 (height, width, 3), ",
    "a sound": "arrays float (samples,), ",
}


def found_file(value: Any, record: Mapping[str, Any], root: Path | None, what: str) -> Any:
    """Return bytes, an open file or a path, or whatever a record has under the name.

    what: "an image", "a video", "a sound", for errors. root: the folder of files that records name.
    Raises ValueError for anything else, and for files that may not be read.
    """
    if isinstance(value, bytes) or hasattr(value, "read"):
        return value
    if isinstance(value, Mapping) and (value.get("bytes") or value.get("path")):
        return found_file(value.get("bytes") or value["path"], record, root, what)
    if isinstance(value, str | Path):
        return _named(str(value), record, root, what)
    raise ValueError(
        f"{what} is a {type(value).__name__}; known are {_ALSO.get(what, '')}bytes, files, "
        "mappings of bytes or path, paths, data: URLs and names of members"
    )


def _named(name: str, record: Mapping[str, Any], root: Path | None, what: str) -> Any:
    if name.startswith("data:"):
        return data_of(name, what)
    member = _member(name, record)
    if member is not None:
        return member
    if "://" in name and not name.startswith("file://"):
        raise ValueError(
            f"{what} is at {name!r:.120}, and nothing is fetched: put it beside the records "
            "(as a member of the tar, in a column, or as a file below media_root=)"
        )
    if root is None:
        raise ValueError(
            f"{what} is the file {name!r:.120}: give media_root=, the folder that the paths of "
            "records are in"
        )
    path = (root / name.removeprefix("file://")).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ValueError(f"{what} is the file {name!r:.120}, which is not below {root}")
    if not path.is_file():
        raise ValueError(f"{what} is the file {name!r:.120}, and there is none below {root}")
    return path


def data_of(url: str, what: str) -> bytes:
    """Return the bytes in a data: URL; ValueError for one that is not of base64."""
    head, _, body = url.partition(",")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{what} {head!r:.40} is no base64: {error}") from None


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
