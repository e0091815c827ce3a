"""Makes a record of a table's row, in the form that a sample of a tar has.

A column is one of three: media (images, videos, sounds), a member whose name is an extension as in
a tar ("json", "txt", "jpg", "img0.png"), or else a field of the JSON member. Media become members
img0.jpg, img1.png, ..., vid0.mp4, aud0.wav, in the order of columns and of the lists in them. Their
extension is that of their path, else what their first bytes are.
"""

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..images.decode import is_image
from ..media.files import is_audio, is_video
from ..tar.members import PICKLED, decode_member

# What these columns hold may be JSON text, since a list of unlike turns is no type of Arrow's.
CHATS = ("messages", "conversations")
MEMBERS = ("json", "txt", "npy")
MEDIA = ("image", "images", "video", "videos", "audio", "audios")
PICKLED_TYPE = "arrow.py_extension_type"  # pyarrow's, which it once unpickled when it read a file
BEGINS = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n", "png"),
    (b"GIF8", "gif"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"\0\0\0\x0cjP", "jp2"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
    (b"\x1aE\xdf\xa3", "mkv"),
)
RIFF = {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi"}


@dataclass(frozen=True, slots=True)
class RowForm:
    """The columns of a table by what they are; `folder` has the files that media name by path."""

    fields: tuple[str, ...]
    members: tuple[str, ...]
    media: tuple[str, ...]
    images: tuple[str, ...] = ()  # of the media, those that are said to be images
    folder: Path | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Return all columns that are read."""
        return (*self.fields, *self.members, *self.media)

    def raw(self, key: str, row: Mapping[str, Any], headers: bool = False) -> dict[str, Any]:
        """Return a row's record; with `headers` media are files. ValueError says what is wrong."""
        raw: dict[str, Any] = {"__key__": key}
        for name in self.members:
            if row[name] is not None:
                raw[name] = _member(name, row[name], headers)
        fields = {name: _field(name, row[name]) for name in self.fields}
        own = raw.get("json")
        if fields and (own is None or isinstance(own, dict)):
            raw["json"] = {**fields, **(own or {})}
        counts = Counter[str]()
        for name in self.media:
            for value in _flat(row[name]):
                extension, data = self._medium(name, value)
                kind = _kind(extension)
                member = f"{kind}{counts[kind]}.{extension}" if kind else name
                counts[kind] += 1
                raw[member] = _opened(data) if headers else _read(data)
        return raw

    def _medium(self, column: str, value: Any) -> tuple[str, bytes | Path]:
        """Return the extension of an image, a video or a sound, and its bytes or its file."""
        is_struct = isinstance(value, Mapping)
        data = value.get("bytes") if is_struct else value
        path = value.get("path") if is_struct else None
        if isinstance(data, str):
            data, path = None, data
        if data is None and not path:
            raise ValueError(f"column {column!r} has neither bytes nor a path: {value!r:.80}")
        extension = Path(path or "").suffix[1:].lower()
        if not _kind(extension):
            is_known = is_struct or data is None or column in (*MEDIA, *self.images)
            extension = _begun(data or b"") or (_default(column) if is_known else "")
        return extension, data if data is not None else self._file(column, str(path))

    def _file(self, column: str, name: str) -> Path:
        if self.folder is None:
            raise ValueError(
                f"column {column!r} names the file {name!r:.120}: give media=, the folder that "
                "such paths are in"
            )
        path = (self.folder / name).resolve()
        if not path.is_relative_to(self.folder.resolve()) or not path.is_file():
            raise ValueError(
                f"column {column!r} names the file {name!r:.120}, which is none below {self.folder}"
            )
        return path


def row_form(
    schema: Any,
    columns: Sequence[str] | None = None,
    images: Sequence[str] | None = None,
    folder: Path | None = None,
) -> RowForm:
    """Return the form of a table's rows by its Arrow schema.

    columns: those that are read; by default all whose names do not begin with "__". images: those
    that hold images, in this order; by default all that hold bytes, structs of bytes and path, or
    lists of them, and with a folder those of the names in MEDIA that hold texts. Raises ValueError
    for columns that are not there, or that are refused.
    """
    names = list(schema.names)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two columns are called {twice!r}; rename one")
    wanted = [n for n in names if not n.startswith("__")] if columns is None else list(columns)
    wanted += [name for name in images or () if name not in wanted]
    if missing := [name for name in wanted if name not in names]:
        raise ValueError(f"no column {missing[0]!r}; there are {', '.join(names)}")
    form: dict[str, list[str]] = {"fields": [], "members": [], "media": []}
    for name in wanted:
        field = schema.field(name)
        _refuse_pickled(field)
        form[_part(name, field.type, images, folder)].append(name)
    others = [name for name in form["media"] if name not in (images or ())]
    media = (*(images or ()), *others)
    return RowForm(
        tuple(form["fields"]), tuple(form["members"]), media, tuple(images or ()), folder
    )


def _part(name: str, kind: Any, images: Sequence[str] | None, folder: Path | None) -> str:
    """Return which part of a form a column of that name and type belongs to."""
    if name in (images or ()):
        return "media"
    if name in MEMBERS or _kind(name):
        return "members"
    while hasattr(kind, "value_type"):  # of lists, and of dictionaries
        kind = kind.value_type
    # Where images are named, all that is left to find are videos and sounds.
    is_named = name in MEDIA and (images is None or not name.startswith("image"))
    inner = {kind.field(number).name for number in range(kind.num_fields)}
    if inner == {"bytes", "path"}:
        return "media" if images is None or is_named else "fields"
    if str(kind).startswith(("binary", "large_binary", "fixed_size_binary")):
        return "media" if images is None or is_named else "fields"
    is_text = str(kind) in ("string", "large_string", "string_view")
    return "media" if is_named and is_text and folder is not None else "fields"


def _refuse_pickled(field: Any) -> None:
    said = (field.metadata or {}).get(b"ARROW:extension:name", b"").decode(errors="replace")
    if field.name.rpartition(".")[2].lower() in PICKLED or said == PICKLED_TYPE:
        raise ValueError(
            f"column {field.name!r} is pickled and refused, since unpickling runs code; leave it "
            "out with columns=[...]"
        )
    for number in range(field.type.num_fields):
        _refuse_pickled(field.type.field(number))


def _flat(value: Any) -> Iterator[Any]:
    """Yield what is not None of a value, or of nested lists."""
    if isinstance(value, list):
        for each in value:
            yield from _flat(each)
    elif value is not None:
        yield value


def _field(name: str, value: Any) -> Any:
    return _json(name, value) if name in CHATS and isinstance(value, str) else value


def _member(name: str, value: Any, headers: bool) -> Any:
    if _kind(name):
        value = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(value, bytes):
            raise ValueError(f"column {name!r} has no bytes: {value!r:.80}")
        return _opened(value) if headers else value
    if isinstance(value, bytes):
        return decode_member(name, value)
    return _json(name, value) if name == "json" and isinstance(value, str) else value


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"column {name!r}: {type(error).__name__}: {error}") from None


def _kind(extension: str) -> str:
    """Return img, vid or aud; empty for what is none.

    >>> _kind("jpg"), _kind("mp4"), _kind("flac"), _kind("parquet")
    ('img', 'vid', 'aud', '')
    """
    kinds = {"img": is_image, "vid": is_video, "aud": is_audio}
    return next((kind for kind, is_kind in kinds.items() if is_kind(extension)), "")


def _default(column: str) -> str:
    return "mp4" if column.startswith("video") else "wav" if column.startswith("audio") else "jpg"


def _begun(data: bytes) -> str:
    r"""Return the extension of what begins so; empty for anything unknown.

    >>> _begun(b"\xff\xd8\xff\xe0"), _begun(b"RIFF....WEBP"), _begun(b"hello")
    ('jpg', 'webp', '')
    """
    for head, extension in BEGINS:
        if data.startswith(head):
            return extension
    if data[4:8] == b"ftyp":
        return "avif" if data[8:12] in (b"avif", b"avis") else "mp4"
    if data[:2] == b"BM" and data[6:10] == bytes(4):
        return "bmp"
    return RIFF.get(data[8:12], "") if data[:4] == b"RIFF" else ""


def _read(data: bytes | Path) -> bytes:
    return data.read_bytes() if isinstance(data, Path) else data


def _opened(data: bytes | Path) -> Any:
    return data.open("rb") if isinstance(data, Path) else io.BytesIO(data)
