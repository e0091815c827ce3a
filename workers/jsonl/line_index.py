"""Indexes a JSON file: where each record is, and what it is called; kept in a file beside it.

A file of JSON lines has a record in each line that is not blank. A JSON file that is one array has
one in each element, one that is an object of objects one in each value, which is called by its
name. Records are looked into for nothing but their id: a line that is no JSON has its place, and is
a broken sample when it is read. So a file that was cut off while it was written loses one sample.
"""

import codecs
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..sources.cache_files import identity, kept_path
from ..sources.file_index import FileIndex
from ..sources.fingerprint import digest, digest_arrays

# A record is read as a whole: a longer one is a broken sample.
MOST_BYTES = 1 << 28
IDS = ("__key__", "id", "key")
PACKED = (".gz", ".zst", ".bz2", ".xz", ".zip")


class RecordPlace(NamedTuple):
    """The first byte and the bytes of a record, its line or its place in the array from 1."""

    start: int
    size: int
    number: int


class LineIndex(FileIndex):
    """The records of one file, each a RecordPlace; the name of one that has no id is empty.

    The fact `checksum` is of all bytes.
    """

    def place(self, row: int) -> RecordPlace:
        """Return where a record is."""
        return RecordPlace(*self.places[row].tolist())

    def key(self, row: int, file: str) -> str:
        """Return a record's id; of one without FILE:LINE."""
        return self.name(row) or f"{file}:{self.places[row, 2]}"

    @cached_property
    def digest(self) -> str:
        """Return a hash of ids, places and content, the same for every copy."""
        return digest_arrays(f"{self.facts['checksum']} ".encode() + self.names, self.places)


def kept_index(path: Path, id_field: str | None, cache: Path | None) -> Path:
    """Return where a file's index is kept."""
    mark = "" if id_field is None else f"{digest(id_field)}."
    return kept_path(path, f"{mark}index.npz", cache)


def open_index(path: Path, id_field: str | None, cache: Path | None = None) -> LineIndex:
    """Return a file's index: the kept one while size and mtime are as they were, else a new one.

    id_field: the field that names records; None: the first of IDS that a record has; "": none.
    Raises ValueError for what is no JSON file, and an id that occurs twice.
    """
    index_path = kept_index(path, id_field, cache)
    return LineIndex.load_or_build(index_path, identity(path), lambda: scan(path, id_field))


def scan(path: Path, id_field: str | None) -> LineIndex:
    """Read a file once; ValueError names the file, and what is wrong with it."""
    if path.suffix.lower() in PACKED:
        raise ValueError(f"{path} is compressed, and records are read from their places: unpack it")
    fields = IDS if id_field is None else (id_field,) if id_field else ()
    places, names, seen, checksum = list[RecordPlace](), list[bytes](), dict[str, RecordPlace](), 0
    with path.open("rb") as file:
        try:
            records = _yield_values(file) if _is_whole(path, file) else _yield_lines(file)
            for place, data, name in records:
                checksum = zlib.crc32(data, checksum)
                record_id = _read_id(data, fields) if name is None or id_field is not None else name
                if record_id and seen.setdefault(record_id, place) is not place:
                    raise ValueError(
                        f"{record_id!r:.200} names record {seen[record_id].number} and record "
                        f'{place.number}; keys must differ: remove one, or give key="" to name '
                        "samples by file and line"
                    )
                places.append(place)
                names.append(record_id.encode("utf-8", "backslashreplace"))
            # Records without an id are called by their lines, which may be the id of others.
            nameless = {place.number for place, name in zip(places, names, strict=True) if not name}
            for line in nameless if seen else ():
                if (record_id := f"{path.name}:{line}") in seen:
                    raise ValueError(
                        f"record {seen[record_id].number} is called {record_id!r}, as is record "
                        f'{line}, which has no id: keys must differ; give it one, or key=""'
                    )
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from None
    return LineIndex.build(names, places, [1] * len(names), checksum=checksum)


# A record's bytes, and its name where it stands apart.
Found = tuple[RecordPlace, bytes, str | None]


def _yield_lines(file: BinaryIO) -> Iterator[Found]:
    """Yield the lines that are not blank; of one that is too long only its beginning."""
    at = file.seek(_find_begin(file))
    number = 0
    while line := file.readline(MOST_BYTES + 1):
        number, start, at = number + 1, at, at + len(line)
        size, last = len(line.rstrip()), line
        while not last.endswith(b"\n") and (last := file.readline(1 << 20)):
            at += len(last)
            size = at - start - len(last) + len(last.rstrip())
        if size:
            yield RecordPlace(start, size, number), line if size <= MOST_BYTES else b"", None


def _find_begin(file: BinaryIO) -> int:
    """Return where a file begins behind a byte order mark."""
    file.seek(0)
    return len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0


def _is_whole(path: Path, file: BinaryIO) -> bool:
    """Return whether a file is one JSON value, not one in each line: many name the latter .json."""
    if path.suffix.lower() != ".json":
        return False
    file.seek(_find_begin(file))
    lines = iter(lambda: file.readline(MOST_BYTES), b"")
    line = next(filter(bytes.strip, lines), b"")
    if not line.lstrip().startswith(b"{"):
        return bool(line)
    try:
        first = json.loads(line.decode())
    except (ValueError, RecursionError):
        return True
    is_only = not any(chunk.strip() for chunk in iter(lambda: file.read(1 << 20), b""))
    if not isinstance(first, dict) or not is_only:
        return is_only
    return bool(first) and all(isinstance(record, dict) for record in first.values())


BLANK = re.compile(r"[ \t\n\r]*")


def _yield_values(file: BinaryIO) -> Iterator[Found]:
    """Yield the elements of an array, or the values of an object with their names."""
    at = file.seek(_find_begin(file))
    text = file.read().decode()
    before = 0
    for number, (start, end, name) in enumerate(_find_elements(text), start=1):
        at += len(text[before:start].encode())
        data = text[start:end].encode()
        yield RecordPlace(at, len(data), number), data, name
        at, before = at + len(data), end


def _find_elements(text: str) -> Iterator[tuple[int, int, str | None]]:
    """Yield the begin and end of each element in characters, and the name of an object's value."""
    decode = json.JSONDecoder().raw_decode

    def skip_blanks(at: int) -> int:
        blank = BLANK.match(text, at)
        return blank.end() if blank is not None else at

    at = skip_blanks(0)
    closing = {"[": "]", "{": "}"}.get(text[at : at + 1])
    if closing is None:
        raise ValueError("it is no JSON array, no object, and not a record in each line")
    at = skip_blanks(at + 1)
    while text[at : at + 1] != closing:
        name = None  # an array's elements have none
        if closing == "}":
            name, at = decode(text, at)
            at = skip_blanks(at)
            if text[at : at + 1] != ":":
                raise ValueError(f"it is no JSON: a colon is missing at character {at}")
            at = skip_blanks(at + 1)
        start = at
        value, at = decode(text, at)
        if closing == "}" and not isinstance(value, dict):
            raise ValueError(
                f"it is one object, and its {name!r:.80} is none: needed is an array of records, "
                "an object of records by id, or a record in each line"
            )
        yield start, at, name
        at = skip_blanks(at)
        if text[at : at + 1] == ",":
            at = skip_blanks(at + 1)
        elif text[at : at + 1] != closing:
            raise ValueError(f"it is no JSON, or ends too early: at character {at}")
    if skip_blanks(at + 1) != len(text):
        raise ValueError(f"it goes on after its JSON value, at character {at + 1}")


def _read_id(data: bytes, fields: Sequence[str]) -> str:
    """Return a record's name: the first of the fields that is a text or a whole number, or ""."""
    try:
        record = json.loads(data.decode()) if fields else None
    except (ValueError, RecursionError):
        return ""
    for name in map(record.get, fields) if isinstance(record, dict) else ():
        if isinstance(name, str | int) and not isinstance(name, bool) and name != "":
            return str(name)
    return ""
