"""Makes a record of a table's row: what JSONL would have, with its media as bytes."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..hf_processor.records import MEDIA_COLUMNS
from ..images.decode import is_image
from ..media.files import is_media
from ..tar.members import PICKLED
from ..vision_language.chats import CHATS

# In these a text is JSON: turns that are not alike have no type of Arrow's.
JSON_TEXTS = ("json", *CHATS)
# Arrow's types of values that JSON has none for, at any depth, as they are printed.
UNLIKE_JSON = re.compile(r"\b(timestamp|date\d+|time\d+|duration)\[|\bdecimal\d+\(")
IMAGES = ("images", "image")
# How files of WAV, FLAC, Ogg and MP3 begin: of bytes in a table nothing else says what they are.
SOUND = re.compile(rb"RIFF....WAVE|fLaC|OggS|ID3", re.DOTALL)
PICKLED_TYPE = b"arrow.py_extension_type"  # once unpickled by pyarrow when it read a file


@dataclass(frozen=True, slots=True)
class RowForm:
    """The columns of a table: fields of the record, and those whose values are its images."""

    fields: tuple[str, ...]
    images: tuple[str, ...]
    unlike_json: tuple[str, ...] = ()  # fields, with their types, whose values JSON has none for

    @property
    def columns(self) -> tuple[str, ...]:
        """Return all columns that are read."""
        return (*self.fields, *self.images)

    def record(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record of a row; ValueError for a text that is no JSON.

        A column "json" is the record itself, or its messages; other columns stand beside it.
        """
        record = {name: _parse_value(name, row[name]) for name in self.fields}
        nested = record.pop("json", None)
        record |= {"messages": nested} if isinstance(nested, list) else nested or {}
        images = [(name, image) for name in self.images for image in _flatten(row[name])]
        # A sound or video that is decoded as an image would only be called a broken one.
        for name, image in images:
            file = image if isinstance(image, Mapping) else {"bytes": image}
            path, held = file.get("path"), file.get("bytes")
            if is_media(str(path)) or (isinstance(held, bytes) and SOUND.match(held)):
                raise ValueError(
                    f"column {name!r} holds {path or held!r:.80}, and is read as images: call it "
                    "audio or video, or leave it out with columns=[...]"
                )
        if images:
            record["images"] = [image for _, image in images]
        return record


def row_form(
    schema: Any, columns: Sequence[str] | None = None, images: Sequence[str] | None = None
) -> RowForm:
    """Return the form of a table's rows by its Arrow schema.

    columns: those that are read; by default all whose names do not begin with "__". images: those
    that hold images, in this order; by default `images`, `image`, those with an image's extension
    as their name, and Hugging Face's structs of bytes and path. Raises ValueError for columns that
    are not there or are pickled, and for bytes that are not said to be images.
    """
    names = list(schema.names)
    read_names = [n for n in names if not n.startswith("__")] if columns is None else list(columns)
    read_names += [name for name in images or () if name not in read_names]
    for name in read_names:
        if names.count(name) != 1:
            raise ValueError(f"{names.count(name)} columns {name!r}; there are {', '.join(names)}")
        _refuse_pickled(schema.field(name))
    image_names = [name for name in read_names if _holds_images(name, schema.field(name).type)]
    chosen = tuple(image_names if images is None else images)
    # Where no column is named, nothing says whether bytes are images.
    if columns is None and images is None:
        for name in read_names:
            if name not in (*chosen, *MEDIA_COLUMNS) and _holds_bytes(schema.field(name).type):
                raise ValueError(
                    f"column {name!r} holds bytes: name it in images=[...] if they are images, "
                    "or name the columns that are read in columns=[...]"
                )
    kinds = {name: str(schema.field(name).type) for name in read_names if name not in chosen}
    odd = (f"{name!r}, {kind:.80}," for name, kind in kinds.items() if UNLIKE_JSON.search(kind))
    return RowForm((*kinds,), chosen, (*odd,))


def _holds_images(name: str, kind: Any) -> bool:
    inner = _find_innermost(kind)
    is_file = {inner.field(n).name for n in range(inner.num_fields)} == {"bytes", "path"}
    return name in IMAGES or is_image(name) or (is_file and name not in MEDIA_COLUMNS)


def _holds_bytes(kind: Any) -> bool:
    return "binary" in str(_find_innermost(kind)).partition("<")[0]


def _find_innermost(kind: Any) -> Any:
    """Return the type of what lists, dictionaries and Arrow's extensions (Array2D) hold."""
    while inner := getattr(kind, "storage_type", None) or getattr(kind, "value_type", None):
        kind = inner
    return kind


def _refuse_pickled(field: Any) -> None:
    is_pickled = (field.metadata or {}).get(b"ARROW:extension:name") == PICKLED_TYPE
    if is_pickled or field.name.rpartition(".")[2].lower() in PICKLED:
        raise ValueError(
            f"column {field.name!r} is pickled and refused, since unpickling runs code; leave it "
            "out with columns=[...]"
        )
    for number in range(field.type.num_fields):
        _refuse_pickled(field.type.field(number))


def _flatten(value: Any) -> Iterator[Any]:
    """Yield what is not None of a value, or of nested lists."""
    if isinstance(value, list):
        for element in value:
            yield from _flatten(element)
    elif value is not None:
        yield value


def _parse_value(name: str, value: Any) -> Any:
    if name not in JSON_TEXTS or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"column {name!r} is no JSON ({error})") from None
