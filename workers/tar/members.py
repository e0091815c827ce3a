"""Decodes members by their extension, as webdataset does; nothing is ever unpickled.

| last part of the extension | value |
|---|---|
| txt text transcript caption | str (UTF-8, without a byte order mark) |
| json jsn | the JSON's value |
| cls cls2 index count inx id | int |
| npy | numpy array |
| an image's | left to the transform |
| pyd pickle pkl pth pt joblib | refused |
| anything else | bytes |
"""

import codecs
import json
from collections.abc import Callable
from typing import Any

from ..sources.cache_files import read_npy

PICKLED = {"pyd", "pickle", "pkl", "pth", "pt", "joblib"}


def _text(data: bytes) -> str:
    return data.removeprefix(codecs.BOM_UTF8).decode()


DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript", "caption"), _text),
    **dict.fromkeys(("json", "jsn"), json.loads),
    **dict.fromkeys(("cls", "cls2", "index", "count", "inx", "id"), lambda data: int(_text(data))),
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


def refuse_pickled(extension: str) -> None:
    """Raise ValueError for a member that only unpickling could read."""
    if extension.rpartition(".")[2] in PICKLED:
        raise ValueError(
            f"{extension}: pickled members are refused, since unpickling runs code; "
            "write them as json or npy"
        )
