"""Brings a record and its media into the form that samples of tar shards have.

That is {"json": the record, "jpg" or "img0.jpg", "img1.png"...: media}, so that a transform need
not know which source a sample comes from. Media are what parts of messages name
(OpenAI's `image_url`, Hugging Face's `image`, ...), and what columns hold (`images` or `image`,
`videos` or `video`, `audios` or `audio`). Columns stay in the record, unless they hold bytes; parts
that named a file name its member instead.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..hf_processor.files import decode_url
from ..hf_processor.records import KINDS, NOTHING, MediaKind, list_media, read_media
from ..vision_language.chats import CHATS

# Of each kind of media: its members' name where there are several, and the extension where a
# reference does not tell.
MEMBERS = {"image": ("img", "jpg"), "video": ("video", "mp4"), "audio": ("audio", "wav")}
Record = Mapping[str, Any]
# Gets a reference (a path or a URL), returns bytes or, to read headers from, a file.
Read = Callable[[str], Any]


def raw_form(record: Record, read: Read, headers: bool = False) -> dict[str, Any]:
    """Return a record and its media by extension; ValueError says which is wrong, and how.

    With `headers` all media are files, as `read` gives them.

    >>> raw_form({"text": "hi", "images": ["x.png", "y.JPG"]}, str.upper)
    {'json': {'text': 'hi', 'images': ['x.png', 'y.JPG']}, \
'img0.png': 'X.PNG', 'img1.jpg': 'Y.JPG'}
    """
    in_columns, in_parts = list(_yield_column_media(record)), list(_yield_part_media(record))
    references = in_columns + in_parts
    if not references:
        return {"json": record}
    names, media = _name_members(references), dict[str, Any]()
    for name, (kind, value) in zip(names, references, strict=True):
        held = _read_media(value, f"{kind.name} ({name})", read)
        media[name] = io.BytesIO(held) if headers and isinstance(held, bytes) else held
    fields = {name: value for name, value in record.items() if not _holds_bytes(name, value)}
    return {"json": _rename_parts(fields, iter(names[len(in_columns) :])), **media}


def _yield_column_media(record: Record) -> Iterator[tuple[MediaKind, Any]]:
    for kind in KINDS:
        yield from ((kind, value) for value in list_media(record, kind) if value is not None)


def _yield_part_media(record: Record) -> Iterator[tuple[MediaKind, Any]]:
    for turn in _find_turns(record)[1]:
        for part in _find_parts(turn):
            kind, value = _find_media(part)
            if kind is not None:
                yield kind, value


def _find_turns(record: Record) -> tuple[str, list[Any]]:
    """Return the column of a record's chat, and its turns."""
    name = next((name for name in CHATS if record.get(name) is not None), CHATS[0])
    turns = record.get(name)
    return name, turns if isinstance(turns, list) else []


def _find_parts(turn: Any) -> Sequence[Any]:
    content = turn.get("content", turn.get("value")) if isinstance(turn, Mapping) else None
    return content if isinstance(content, list | tuple) else ()


def _find_media(part: Any) -> tuple[MediaKind | None, Any]:
    """Return what a part of a message says that it is, and the kind; None for other parts."""
    if isinstance(part, Mapping):
        for kind in KINDS:
            if part.get("type") in kind.parts and (value := read_media(part, kind)) is not NOTHING:
                return kind, value
    return None, None


def _name_members(media: Sequence[tuple[MediaKind, Any]]) -> list[str]:
    """Return the members' names: the extension alone where there is one of a kind."""
    kinds = [kind.name for kind, _ in media]
    seen, names = dict.fromkeys(kinds, 0), list[str]()
    for kind, value in media:
        stem, default = MEMBERS[kind.name]
        extension = _find_extension(value)
        suffix = extension if kind.is_member(extension) else default
        names.append(f"{stem}{seen[kind.name]}.{suffix}" if kinds.count(kind.name) > 1 else suffix)
        seen[kind.name] += 1
    return names


def _find_extension(value: Any) -> str:
    """Return the extension in a reference, in lower case; empty where it tells none.

    >>> _find_extension("a/b.JPEG"), _find_extension("data:image/png;base64,aGk=")
    ('jpeg', 'png')
    """
    text = _find_reference(value)
    if text is None:
        return ""
    if text.startswith("data:"):
        return text[5:100].partition(";")[0].rpartition("/")[2].lower()
    return text.rpartition("/")[2].rpartition(".")[2].lower()


def _find_reference(value: Any) -> str | None:
    """Return the path or URL of what a column or a part says; None for what has none."""
    if isinstance(value, Mapping):
        value = value.get("path") or value.get("url")
    return value if isinstance(value, str) and value else None


def _read_media(value: Any, name: str, read: Read) -> Any:
    held = value.get("bytes") if isinstance(value, Mapping) else value
    if isinstance(held, bytes):
        return held
    reference = _find_reference(value)
    if reference is None:
        raise ValueError(
            f"{name} is {value!r:.80}: needed is a path, a data: URL, or a mapping of path or url"
        )
    return decode_url(reference, f"{name}:") if reference.startswith("data:") else read(reference)


def _holds_bytes(name: str, value: Any) -> bool:
    """Return whether a column's media are bytes, which no JSON has."""
    if not any(name in kind.columns for kind in KINDS):
        return False
    values = value if isinstance(value, list | tuple) else [value]
    held = (medium.get("bytes") if isinstance(medium, Mapping) else medium for medium in values)
    return any(isinstance(content, bytes) for content in held)


def _rename_parts(record: dict[str, Any], names: Iterator[str]) -> dict[str, Any]:
    """Return a record whose parts name members; the parts' order is that of `_yield_part_media`."""

    def rename_part(part: Any) -> Any:
        kind, _ = _find_media(part)
        return part if kind is None else {"type": kind.name, kind.name: next(names)}

    name, turns = _find_turns(record)
    if any(map(_find_parts, turns)):
        record[name] = [
            {**turn, "content": [rename_part(part) for part in parts]}
            if (parts := _find_parts(turn))
            else turn
            for turn in turns
        ]
    return record
