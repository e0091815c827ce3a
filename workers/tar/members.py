"""Decodes members by their extension, as webdataset does, and encodes them; nothing is unpickled.

The last part of an extension decides (see DECODERS): text, JSON, an int, a numpy array. Images are
left to the transform, PICKLED is refused, anything else is bytes.
"""

import codecs
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from ..images.decode import is_image
from ..media.files import is_media
from ..sources.cache_files import read_npy
from .headers import Member

PICKLED = {"pyd", "pickle", "pkl", "pth", "pt", "joblib"}


def _decode_text(data: bytes) -> str:
    return data.removeprefix(codecs.BOM_UTF8).decode()


TEXTS = ("txt", "text", "transcript", "caption")
JSONS = ("json", "jsn")
NUMBERS = ("cls", "cls2", "index", "count", "inx", "id")
DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(TEXTS, _decode_text),
    **dict.fromkeys(JSONS, json.loads),
    **dict.fromkeys(NUMBERS, lambda data: int(_decode_text(data))),
    "npy": read_npy,
}


def decode_member(extension: str, data: bytes) -> Any:
    """Return a member's value; ValueError says what is wrong with it.

    >>> decode_member("txt", b"hi"), decode_member("cls", b"7"), decode_member("mp3", b"x")
    ('hi', 7, b'x')
    """
    kind = extension.rpartition(".")[2]
    if kind not in DECODERS:
        return data
    try:
        return DECODERS[kind](data)
    except (ValueError, RecursionError, EOFError) as error:
        raise ValueError(f"{extension}: {type(error).__name__}: {error}") from error


def holds_media(member: Member) -> bool:
    """Return whether a member is an image, a video or a sound, of which a header says the size."""
    return is_image(member.extension) or is_media(member.extension)


def refuse_pickled(extension: str) -> None:
    """Raise ValueError for a member that only unpickling could read."""
    if extension.rpartition(".")[2] in PICKLED:
        raise ValueError(
            f"{extension}: pickled members are refused, since unpickling runs code; "
            "write them as json or npy"
        )


def encode_member(name: str, value: Any) -> tuple[str, bytes]:
    """Return the extension and bytes from which `decode_member` makes a field's value again.

    An extension that does not say what the value is gets one that does: npy for arrays and tensors,
    png for Pillow's images, txt for strings, json for other plain values. Bytes are left as they
    are. TypeError for anything else.

    >>> encode_member("caption", "hi"), encode_member("label", 7), encode_member("jpg", b"x")
    (('caption', b'hi'), ('label.json', b'7'), ('jpg', b'x'))
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return name, bytes(value)
    file = io.BytesIO()
    if isinstance(value, Image.Image):
        try:
            value.save(file, "PNG")
        except OSError as error:
            raise TypeError(f"{error}: convert it to RGB") from None
        return _add_extension(name, ("png",)), file.getvalue()
    value = value.item() if isinstance(value, np.generic) else value
    if hasattr(value, "__array__"):
        np.save(file, np.asarray(value), allow_pickle=False)
        return _add_extension(name, ("npy",)), file.getvalue()
    kind = name.rpartition(".")[2]
    if isinstance(value, str) and kind not in JSONS:
        return _add_extension(name, TEXTS), value.encode()
    if type(value) is int and kind in NUMBERS:
        return name, str(value).encode()
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # As json.loads reads it: half of a surrogate pair is no UTF-8, but stands in some texts.
    return _add_extension(name, JSONS), text.encode("utf-8", "surrogatepass")


def _add_extension(name: str, kinds: tuple[str, ...]) -> str:
    return name if name.rpartition(".")[2] in kinds else f"{name}.{kinds[0]}"
