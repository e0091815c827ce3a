"""Presents an MDS folder as a map-style dataset: a shard's first bytes say where its samples are.

[samples u32] [where each sample begins, and the last one ends: u32] [settings] [samples]
a sample: [length u32 of each value whose column has no fixed size] [values]
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..columns.row_form import RowForm
from ..images.decode import is_image
from ..media.files import is_media
from ..sources.failures import DataChangedError
from ..sources.file_patterns import Pattern
from ..sources.fingerprint import digest, digest_arrays
from ..sources.interface import Cost, Sample, SampleError
from ..sources.records import RecordDataset, Transform
from ..tar.shard_files import ShardFiles
from .encodings import IMAGES, LISTS, decode_value, image_files
from .index import INDEX, Column, Shard, read_index
from .unpacking import unpacked

MEMBERS = ("json", "txt", "npy")


class MDSDataset(RecordDataset):
    """Samples of an MDS folder, which MosaicML streaming's MDSWriter writes, in its order; a source.

    `pattern` is the folder of index.json. `transform(raw)` gets a sample in the form of a tar's:
    images as files (img0.jpg, img1.png...), columns that are called as members are (json, txt,
    jpg, mp4) by their names, all others as fields of raw["json"]. The key is SHARD:ROW. Shards that
    are compressed are unpacked once, beside them or in `cache`. Pickled columns are refused.

    transform, root, cache and cost are TarDataset's. Raises FileNotFoundError for a folder or shard
    that is not there, ValueError for one that is damaged or of another format.
    """

    FORMAT, MARKERS = "mds", (INDEX,)

    def __init__(
        self,
        pattern: Pattern,
        transform: Transform | None = None,
        root: str | Path | None = None,
        cache: str | Path | None = None,
        cost: Callable[[Sample], Cost] | None = None,
    ) -> None:
        super().__init__(pattern, transform, root, cache, cost)
        if len(self.pattern) != 1:
            raise ValueError(f"give one folder with an {INDEX}, got {pattern!r:.200}")
        self.folder = Path(self.pattern[0]).expanduser()
        if root is not None:
            self.folder = Path(root) / self.pattern[0]
        self._files = ShardFiles()
        self.open()

    def open_files(self) -> Sequence[int]:
        """Read index.json, and compare each shard's size and number of samples with it."""
        self._below_root(self.folder / INDEX)
        self._shards = [shard for shard in read_index(self.folder) if shard.samples]
        if not self._shards:
            raise ValueError(f"{self.folder} has no samples")
        self.files = tuple(self._file(shard) for shard in self._shards)
        self._files.note(self.files)
        for path, shard in zip(self.files, self._shards, strict=True):
            self._check_shard(path, shard)
        forms = {shard.columns: _form(shard.columns) for shard in self._shards}
        self._forms = [forms[shard.columns] for shard in self._shards]
        return [shard.samples for shard in self._shards]

    def _file(self, shard: Shard) -> Path:
        path = self._below_root(self.folder / shard.name)
        if path.is_file():
            return path
        if shard.packed is not None:
            name, method = shard.packed
            packed = self._below_root(self.folder / name)
            if packed.is_file():
                return unpacked(packed, method, shard.nbytes, self.cache)
        raise FileNotFoundError(f"no such file: {path}; {INDEX} names it, copy the folder again")

    def _below_root(self, path: Path) -> Path:
        if self.root is not None and not path.resolve().is_relative_to(Path(self.root).resolve()):
            raise ValueError(f"{path} leaves the root {self.root}; name files below it")
        return path

    def _check_shard(self, path: Path, shard: Shard) -> None:
        size, table = path.stat().st_size, 4 * (shard.samples + 2)
        if size != shard.nbytes or size < table:
            raise ValueError(
                f"{path} has {size} bytes, and {INDEX} says {shard.nbytes}: copy it again"
            )
        count = int.from_bytes(self._files.read_at(path, 0, 4), "little")
        end = int.from_bytes(self._files.read_at(path, table - 4, 4), "little")
        if (count, end) != (shard.samples, size):
            raise ValueError(
                f"{path} says that it has {count} samples in {end} bytes, and {INDEX} "
                f"{shard.samples} in {size}: write it again"
            )

    def has_changed(self) -> bool:
        """Return whether a shard is not as it was when it was opened."""
        return any(self._files.has_changed(path) for path in self.files)

    def check(self, index: int) -> None:
        """Raise DataChangedError where a sample's shard has changed since it was opened."""
        self._files.check(self.files[self.place(index)[0]])

    def key(self, index: int) -> str:
        """Return SHARD:ROW, as shard.00000:12; IndexError outside 0 <= index < len."""
        number, row = self.place(index)
        return f"{self._shards[number].name.removesuffix('.mds')}:{row}"

    def file_digest(self, number: int) -> str:
        """Return a hash of what index.json says of a shard, and of where its samples are."""
        shard = self._shards[number]
        table = self._files.read_at(self.files[number], 0, 4 * (shard.samples + 2))
        columns = [[each.name, each.encoding, each.size] for each in shard.columns]
        return digest([shard.name, columns, digest_arrays(b"", np.frombuffer(table, np.uint32))])

    def raw(self, index: int, headers: bool = False) -> dict[str, Any]:
        """Return "__key__" and the columns in a tar's form; SampleError where they are damaged."""
        number, row = self.place(index)
        path, shard, key = self.files[number], self._shards[number], self.key(index)
        places = self._files.read_at(path, 4 * (row + 1), 8)
        begin, end = np.frombuffer(places, "<u4").tolist()
        try:
            if not 4 * (shard.samples + 2) <= begin <= end <= shard.nbytes:
                raise ValueError(f"it is at bytes {begin} to {end} of {shard.nbytes}")
            data = self._files.read_at(path, begin, end - begin)
            self._files.check(path)
            return self._forms[number].raw(key, _row(shard.columns, data), headers)
        except DataChangedError:
            raise
        except ValueError as error:
            raise SampleError(key, str(error), str(path)) from error


def _form(columns: tuple[Column, ...]) -> RowForm:
    parts: dict[str, list[str]] = {"images": [], "media": [], "members": [], "fields": []}
    for column in columns:
        has_images = column.encoding in IMAGES or column.encoding in LISTS
        is_member = column.name in MEMBERS or is_image(column.name) or is_media(column.name)
        is_medium = has_images or column.encoding == "bytes"
        parts["members" if is_member else "media" if is_medium else "fields"].append(column.name)
        parts["images"] += [column.name] if has_images else []
    return RowForm(**{name: tuple(names) for name, names in parts.items()})


def _row(columns: tuple[Column, ...], data: bytes) -> dict[str, Any]:
    """Return a sample's values by column; images are files, or lists of them."""
    varying = sum(not column.size for column in columns)
    lengths = iter(np.frombuffer(data[: 4 * varying], "<u4").tolist())
    row, at = dict[str, Any](), 4 * varying
    for column in columns:
        size = column.size or next(lengths)
        value = data[at : at + size]
        if len(value) < size:
            raise ValueError(f"column {column.name!r} ends {size - len(value)} bytes too late")
        at += size
        try:
            if column.encoding in IMAGES or column.encoding in LISTS:
                row[column.name] = image_files(column.encoding, value)
            else:
                row[column.name] = decode_value(column.encoding, value)
        except ValueError as error:
            raise ValueError(f"column {column.name!r}: {error}") from None
    if at != len(data):
        raise ValueError(f"its columns have {at} bytes, and it has {len(data)}")
    return row
