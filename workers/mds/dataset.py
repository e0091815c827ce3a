"""Presents an MDS folder as a map-style dataset: a shard's first bytes say where its samples are.

[samples u32] [where each sample begins, and the last one ends: u32] [settings] [samples]
a sample: [length u32 of each value whose column has no fixed size] [values]
"""

import bz2
import gzip
import importlib
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

from ..columns.dataset import Names, column_names
from ..hf_processor.records import MEDIA_COLUMNS
from ..images.decode import is_image
from ..jsonl.record_form import raw_form
from ..sources.cache_files import kept_path, written_file
from ..sources.file_patterns import Pattern, resolved
from ..sources.interface import Cost, Sample
from ..sources.records import RecordDataset, Transform
from .encodings import IMAGES, LISTS, checked_encoding, decode_value, image_files

INDEX = "index.json"
MOST_BYTES = 256 << 20
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Column(NamedTuple):
    """A column: its name, how it is encoded, and the bytes of each value; None where they vary."""

    name: str
    encoding: str
    size: int | None


class _File(msgspec.Struct):
    basename: str
    bytes: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0  # offsets are u32


class Shard(msgspec.Struct):
    """A shard, as index.json describes it."""

    format: Literal["mds"]
    version: Literal[2]
    samples: Number
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[Number | None]
    raw_data: _File
    zip_data: _File | None = None
    compression: str | None = None
    columns: tuple[Column, ...] = ()  # in the order of a sample

    @property
    def name(self) -> str:
        """The name of the shard's file."""
        return self.raw_data.basename

    @property
    def nbytes(self) -> int:
        """The bytes of the shard."""
        return self.raw_data.bytes


def read_index(folder: Path) -> tuple[Shard, ...]:
    """Return the shards of a folder; ValueError says why its index.json is none of MDS."""
    path = folder / INDEX
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}; an MDS folder has one, check the path")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} has over {MOST_BYTES} bytes")
    try:
        index: Any = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(index, dict) or not isinstance(index.get("shards"), list):
        raise ValueError(f"{path} is no index of MDS: it has no list of shards")
    seen = dict[tuple[Column, ...], tuple[Column, ...]]()
    shards = list[Shard]()
    for number, described in enumerate(index["shards"]):
        try:
            shard = msgspec.convert(described, Shard)
            for file in filter(None, (shard.raw_data, shard.zip_data)):
                file.basename = _check_name(file.basename)
            encodings = map(checked_encoding, shard.column_encodings)
            pairs = zip(shard.column_names, encodings, shard.column_sizes, strict=True)
            columns = tuple(Column(*pair) for pair in pairs)
        except (msgspec.ValidationError, ValueError) as error:
            raise ValueError(f"{path}: shard {number}: {error}") from None
        shard.columns = seen.setdefault(columns, columns)  # most shards have the same
        shards.append(shard)
    if len({shard.name.removesuffix(".mds") for shard in shards}) < len(shards):
        raise ValueError(f"{path} names a shard twice")
    return tuple(shards)


def _check_name(value: str) -> str:
    parts = Path(value).parts
    if not parts or ".." in parts or Path(*parts).is_absolute() or "\0" in value:
        raise ValueError(f"a file is {value!r}, which leaves the folder")
    return "/".join(parts)


class MDSDataset(RecordDataset):
    """Samples of a folder that MosaicML streaming's MDSWriter wrote, in its order; a source.

    A transform gets a sample as one of a tar: "__key__" (SHARD:ROW), "json" (a dict of the columns;
    a column of that name is the dict itself), and images as files: "jpg", or img0.jpg ... Shards
    that are compressed are unpacked once, beside them or in `cache`. Pickled columns are refused.
    Raises FileNotFoundError for a folder or shard that is not there, ValueError for one that is
    damaged or of another format, and for bytes that are not said to be images.

    Args:
        pattern: The folder of index.json.
        transform: A function of the raw sample; default: images are decoded. See RecordDataset.
        root: The folder that all that is read must be below; default: none.
        cache: The folder of indexes and costs; default $COUNTERPOISE_CACHE, else beside the files.
        cost: A function of a loaded sample; default: the transform's probe, or the headers.
        images: The columns that hold images, in this order; default: those encoded as images, and
            those of bytes called `image`, `images`, or as an extension.
    """

    FORMAT, MARKERS, MAY_REPEAT = "mds", (INDEX,), False

    def __init__(
        self,
        pattern: Pattern,
        transform: Transform | None = None,
        root: str | Path | None = None,
        cache: str | Path | None = None,
        cost: Callable[[Sample], Cost] | None = None,
        *,
        images: Names = None,
    ) -> None:
        self.arguments = {"images": column_names(images, "images")}
        super().__init__(pattern, transform, root, cache, cost)

    def find_files(self, pattern: Pattern) -> tuple[Path, ...]:
        """Find the folder, whose index.json names the files when it is read."""
        if len(self.pattern) != 1:
            raise ValueError(f"give one folder with an {INDEX}, got {pattern!r:.200}")
        if "://" in self.pattern[0]:
            raise ValueError(f"{self.pattern[0]:.200} is no local path: copy or mount the folder")
        self.folder = resolved(Path(self.pattern[0]), self.root)
        return ()

    def open_files(self) -> Sequence[int]:
        """Read index.json, and compare each shard's size and number of samples with it."""
        resolved(self.folder / INDEX, self.root)  # or raises
        self._shards = [shard for shard in read_index(self.folder) if shard.samples]
        kinds = {shard.columns: self._find_image_columns(shard.columns) for shard in self._shards}
        self._image_names = [kinds[shard.columns] for shard in self._shards]
        odd = (c for kind in kinds for c in kind if c.encoding.startswith(("nd", "str_decimal")))
        self.unlike_json = [f"{column.name!r}, {column.encoding}," for column in odd]
        self.files = tuple(self._find_file(shard) for shard in self._shards)
        self._files.note(self.files)
        for path, shard in zip(self.files, self._shards, strict=True):
            self._check_shard(path, shard)
        return [shard.samples for shard in self._shards]

    def _find_image_columns(self, columns: tuple[Column, ...]) -> tuple[str, ...]:
        encodings = {column.name: column.encoding for column in columns}
        if (images := self.arguments["images"]) is not None:
            if missing := [name for name in images if name not in encodings]:
                have = ", ".join(encodings)
                raise ValueError(f"{self.folder} has no column {missing[0]!r}; there are {have}")
            return tuple(images)
        image_names = list[str]()
        for name, encoding in encodings.items():
            is_named = name in ("image", "images") or is_image(name)  # else bytes may be anything
            if encoding in (*IMAGES, *LISTS) or (encoding == "bytes" and is_named):
                image_names.append(name)
            elif encoding == "bytes" and name not in ("json", *MEDIA_COLUMNS):
                raise ValueError(
                    f"{self.folder}: column {name!r} holds bytes: name it in images=[...] if they "
                    "are images; with images=[] they stay bytes in raw['json']"
                )
        return tuple(image_names)

    def _find_file(self, shard: Shard) -> Path:
        path = resolved(self.folder / shard.name, self.root)
        if path.is_file():
            return path
        if shard.zip_data is not None:
            packed = resolved(self.folder / shard.zip_data.basename, self.root)
            method = (shard.compression or "").partition(":")[0]
            if packed.is_file():
                return unpack_shard(packed, method, shard.nbytes, self.cache)
        raise FileNotFoundError(f"no such file: {path}; {INDEX} names it, copy the folder again")

    def _check_shard(self, path: Path, shard: Shard) -> None:
        size, table = path.stat().st_size, 4 * (shard.samples + 2)
        if size != shard.nbytes or size < table:
            raise ValueError(
                f"{path} has {size} bytes, and {INDEX} says {shard.nbytes}: copy it again"
            )
        count = int.from_bytes(self._files.read_range(path, 0, 4), "little")
        end = int.from_bytes(self._files.read_range(path, table - 4, 4), "little")
        if (count, end) != (shard.samples, size):
            raise ValueError(
                f"{path} says that it has {count} samples in {end} bytes, and {INDEX} "
                f"{shard.samples} in {size}: write it again"
            )

    def name(self, number: int, row: int) -> str:
        """Return SHARD:ROW, as shard.00000:12."""
        return f"{self._shards[number].name.removesuffix('.mds')}:{row}"

    def read(self, number: int, row: int, headers: bool) -> dict[str, Any]:
        """Return the columns as "json" and the images by extension; with `headers` as files."""
        path, shard = self.files[number], self._shards[number]
        places = self._files.read_range(path, 4 * (row + 1), 8)
        begin, end = np.frombuffer(places, "<u4").tolist()
        if not 4 * (shard.samples + 2) <= begin <= end <= shard.nbytes:
            raise ValueError(f"it is at bytes {begin} to {end} of {shard.nbytes}")
        data = self._files.read_range(path, begin, end - begin)
        self._files.check(path)
        record = _parse(shard.columns, self._image_names[number], data)
        return raw_form(record, _refuse_name, headers)


def _refuse_name(name: str) -> bytes:
    raise ValueError(f"{name!r:.200} is named by a column, and MDS has the bytes themselves")


def _parse(columns: tuple[Column, ...], images: tuple[str, ...], data: bytes) -> dict[str, Any]:
    """Return a sample's values by column, and the files of its images as `images`."""
    varying = sum(not column.size for column in columns)
    lengths = iter(np.frombuffer(data[: 4 * varying], "<u4").tolist())
    record, files, at = dict[str, Any](), dict[str, list[bytes]](), 4 * varying
    for name, encoding, fixed in columns:
        size = fixed or next(lengths, 0)
        value = data[at : at + size]
        at += size
        try:
            if len(value) < size:
                raise ValueError(f"it ends {size - len(value)} bytes too late")
            if name in images:
                files[name] = image_files(encoding, value)
            elif encoding in (*IMAGES, *LISTS):
                continue  # others are wanted
            elif name == "json" and encoding in ("bytes", "str"):
                record[name] = decode_value("json", value)
            else:
                record[name] = decode_value(encoding, value)
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from None
    if at != len(data):
        raise ValueError(f"its columns have {at} bytes, and it has {len(data)}")
    nested = record.pop("json", None) or {}
    if not isinstance(nested, dict | list):
        raise ValueError(f"column 'json' is a {type(nested).__name__}, not an object or a list")
    record |= {"messages": nested} if isinstance(nested, list) else nested
    if files:
        record["images"] = [file for name in images for file in files[name]]
    return record


# Shards are unpacked once: samples are read by offset, which a compressed file has not.
CHUNK = 1 << 20
PYARROW = {"zstd": "zstd", "br": "brotli", "snappy": "snappy"}


def unpack_shard(path: Path, method: str, nbytes: int, cache: Path | None) -> Path:
    """Return the file that has a shard's `nbytes` bytes, made unless it is there.

    It is kept as costs are: in the cache folder, or beside the shard. Raises ValueError for another
    size, which is not written beyond what was said, and for methods that need pyarrow without it.
    """
    state = path.stat()
    final = kept_path(path, f"{state.st_size:x}-{state.st_mtime_ns:x}.unpacked", cache)
    if final.is_file() and not final.is_symlink() and final.stat().st_size == nbytes:
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        with written_file(final) as file, _open_packed(path, method, nbytes) as source:
            left = nbytes + 1
            while left and (data := source.read(min(left, CHUNK))):
                left -= file.write(data)
            if left != 1:
                raise ValueError(f"it has {'more' if not left else 'less'} than {nbytes} bytes")
    except (ValueError, EOFError, OSError, zlib.error) as error:
        if getattr(error, "errno", None) is not None:
            raise  # of the disk
        raise ValueError(f"{path} cannot be unpacked: {error}; copy it again") from None
    return final


def _open_packed(path: Path, method: str, nbytes: int) -> Any:
    if method in ("gz", "bz2"):
        return gzip.open(path) if method == "gz" else bz2.open(path)
    if method not in PYARROW:
        raise ValueError(f"it is compressed by {method!r:.40}, which is not known here")
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
    except ImportError:
        raise ValueError(
            f"{method} needs pyarrow: pip install 'counterpoise[parquet]', or decompress the shards"
        ) from None
    if method == "snappy":  # as one block, which is no smaller than a part of what it holds
        if nbytes > 64 * path.stat().st_size:
            raise ValueError(f"it cannot hold {nbytes} bytes")
        return pyarrow.BufferReader(pyarrow.decompress(path.read_bytes(), nbytes, PYARROW[method]))
    return pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), PYARROW[method])
