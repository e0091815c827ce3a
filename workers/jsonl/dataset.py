"""Presents JSONL and JSON files, and media in files beside them, as a source of samples."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..sources.cache_files import remove_file
from ..sources.failures import DataChangedError
from ..sources.file_patterns import Pattern
from ..sources.interface import Cost, Sample, SampleError
from ..sources.records import RecordDataset, Transform, refuse_repeated
from .line_index import MOST_BYTES, RecordPlace, kept_index, open_index
from .media_folder import MediaFolder
from .record_form import raw_form


class JsonlDataset(RecordDataset):
    """Records of JSONL files, or of JSON files (an array, an object of records by id).

    `pattern` is a path, a folder (its *.jsonl, else *.ndjson, else *.json), a glob, a brace pattern
    or a list of them. Images, videos and sounds that records name are read below the folder
    `media`, by default the folder of the record's file; with `root` everything must lie below it
    after links. A transform gets {"__key__", "json": the record, "jpg" or "img0.jpg"...: bytes}, as
    from a tar shard (`workers/jsonl/record_form.py`); without one images become uint8 (height,
    width, 3) arrays. Costs are as for TarDataset.

    A sample's key is what the record's field `key` says, by default `__key__`, `id` or `key`; where
    there is none, and with key="", FILE:LINE. Places of records are kept in `cache`,
    $COUNTERPOISE_CACHE, beside the files or in ~/.cache/counterpoise. Raises FileNotFoundError and
    ValueError (no JSON file, key that occurs twice, no records).
    """

    FORMAT, EXTENSIONS = "jsonl", (".jsonl", ".ndjson", ".json")

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
        self.media, self.key_field = media, key
        super().__init__(pattern, transform, root, cache, cost)

    def open_files(self) -> Sequence[int]:
        """Open the kept indexes, or read the files once; ValueError as the class says."""
        self._folders = [MediaFolder.of(self.media, path, self.root) for path in self.files]
        self._indexes = [open_index(path, self.key_field, self.cache) for path in self.files]
        if len(self.files) > 1:
            keys = (
                (index.key(row, path.name) for row in range(len(index)))
                for path, index in zip(self.files, self._indexes, strict=True)
            )
            refuse_repeated(self.files, keys, ', or give key="" to name samples by file and line')
        return [len(index) for index in self._indexes]

    def key(self, index: int) -> str:
        """Return the record's id, or FILE:LINE; IndexError outside 0 <= index < len."""
        number, row = self.place(index)
        return self._indexes[number].key(row, self.files[number].name)

    def raw(self, index: int, headers: bool = False) -> dict[str, Any]:
        """Return "__key__", the record as "json", and its media; SampleError for what is none.

        With `headers` media are files to read from instead of bytes, so that a probe reads little.
        """
        number, row = self.place(index)
        path, folder = self.files[number], self._folders[number]
        key, place = self.key(index), self._indexes[number].place(row)
        try:
            record = _record(self._read(path, place), place)
            return raw_form(key, record, folder.open if headers else folder.read, headers)
        except (ValueError, RecursionError) as error:
            raise SampleError(key, str(error), str(path)) from error

    def _read(self, path: Path, place: RecordPlace) -> bytes:
        if place.size > MOST_BYTES:
            raise ValueError(
                f"record {place.number} has {place.size:,} bytes, {MOST_BYTES:,} are read at most"
            )
        try:
            data: bytes = self._files.read_at(path, place.start, place.size)
            self._files.check(path)
        except DataChangedError:
            # It may look as it did when the index was kept: the next run is to index it anew.
            remove_file(kept_index(path, self.key_field, self.cache))
            raise
        return data

    def file_digest(self, number: int) -> str:
        """Return a hash of a file's ids, places and text."""
        return self._indexes[number].digest

    def fields(self) -> dict[str, Any]:
        """Return the arguments of the description, as `spec` has them."""
        media = None if self.media is None else self._absolute(str(self.media))
        given = {"media": media, "key": self.key_field}
        return {name: value for name, value in given.items() if value is not None}


def _record(data: bytes, place: RecordPlace) -> Mapping[str, Any]:
    """Return a record; ValueError for what is no JSON object."""
    try:
        record = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"record {place.number} is no JSON ({error}); write it again") from None
    if not isinstance(record, Mapping):
        kind = type(record).__name__
        raise ValueError(f"record {place.number} is a {kind}, needed is a JSON object")
    return record
