"""Presents JSONL and JSON files, and media in files beside them, as a source of samples."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..sources.file_patterns import Pattern
from ..sources.interface import Cost, Sample
from ..sources.records import RecordDataset, Transform
from .line_index import MOST_BYTES, RecordPlace, kept_index, open_index
from .media_folder import MediaFolder
from .record_form import raw_form


class JsonlDataset(RecordDataset):
    """Records of JSONL files, or of JSON files (an array, an object of records by id).

    A transform gets {"__key__", "json": the record, "jpg" or "img0.jpg"...: bytes}, as from a tar
    shard. Raises FileNotFoundError and ValueError (no JSON file, a key twice, no records).

    Args:
        pattern: A path, a folder (its *.jsonl, else *.ndjson, else *.json), a glob, a brace pattern
            or a list of them.
        transform: A function of the raw sample; default: images are decoded. See RecordDataset.
        root: The folder that all that is read must be below; default: none.
        cache: The folder of indexes and costs; default $COUNTERPOISE_CACHE, else beside the files.
        cost: A function of a loaded sample; default: the transform's probe, or the headers.
        media: The folder of the files that records name; default: that of the record's file.
        key: The field of a record's name, "" for none; default `__key__`, `id` or `key`. Records
            without a name are FILE:LINE.
    """

    FORMAT, EXTENSIONS = "jsonl", (".jsonl", ".ndjson", ".json")
    REPEAT_HINT = ', or give key="" to name samples by file and line'

    def __init__(
        self,
        pattern: Pattern,
        transform: Transform | None = None,
        root: str | Path | None = None,
        cache: str | Path | None = None,
        cost: Callable[[Sample], Cost] | None = None,
        media: str | Path | None = None,
        key: str | None = None,
    ) -> None:
        for name, value in (("media", media), ("key", key)):
            if not isinstance(value, str | Path | None):
                raise ValueError(f"{name} is {value!r:.80}: give a text")
        self.arguments = {"media": media, "key": key}
        super().__init__(pattern, transform, root, cache, cost)

    def open_files(self) -> Sequence[int]:
        """Open the kept indexes, or read the files once; ValueError as the class says."""
        media, key = self.arguments.values()
        self._folders = [MediaFolder(media, path, self.root) for path in self.files]
        self._indexes = [open_index(path, key, self.cache) for path in self.files]
        return [len(index) for index in self._indexes]

    def name(self, number: int, row: int) -> str:
        """Return a record's id, or FILE:LINE."""
        return self._indexes[number].key(row, self.files[number].name)

    def kept_index(self, number: int) -> Path:
        """Return where a file's index is kept."""
        return kept_index(self.files[number], self.arguments["key"], self.cache)

    def file_digest(self, number: int) -> str:
        """Return a hash of a file's ids, places and text."""
        return self._indexes[number].digest

    def read(self, number: int, row: int, headers: bool) -> dict[str, Any]:
        """Return the record as "json", and its media; with `headers` these as files."""
        path, folder = self.files[number], self._folders[number]
        place = self._indexes[number].place(row)
        if place.size > MOST_BYTES:
            raise ValueError(
                f"record {place.number} has {place.size:,} bytes, {MOST_BYTES:,} are read at most"
            )
        data = self._files.read_range(path, place.start, place.size)
        self._files.check(path)
        return raw_form(_parse(data, place), folder.open if headers else folder.read, headers)


def _parse(data: bytes, place: RecordPlace) -> Mapping[str, Any]:
    """Return a record; ValueError for what is no JSON object."""
    try:
        record = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"record {place.number} is no JSON ({error}); write it again") from None
    if not isinstance(record, Mapping):
        kind = type(record).__name__
        raise ValueError(f"record {place.number} is a {kind}, needed is a JSON object")
    return record
