"""Presents WebDataset tar shards as a map-style dataset: any sample, by its index.

Opening reads headers only (or the kept indexes). A sample's members are read by offset; text and
JSON members are decoded, images are left to the transform. Any object with len() and [i] is a
map-style dataset to torch, so this module does without torch.
"""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from ..sources.cache_files import DamagedFileError, Stamp, kept_path
from ..sources.file_patterns import Pattern, find_shards, texts
from ..sources.records import RecordDataset
from ..sources.urls import is_url, shown
from .index import ShardIndex, open_index, shard_stamp
from .members import decode_member, refuse_pickled
from .shard_files import ShardReader, first_ranges, read_members
from .stored_shards import HEAD, STORE_WHOLE_BYTES, stored_reader

logger = logging.getLogger(__name__)
AT_ONCE = 16  # indexes of shards in a store


class TarDataset(RecordDataset):
    """Samples of tar shards, in order of shards and members; a torch dataset and a source.

    `pattern` is a path, a folder, a glob, a brace pattern, a URL of one of these in a store
    (docs/guides/object-stores.md), or a list of them. `transform(raw)` gets a dict of the sample's
    members by extension, and "__key__". transform, root, cache and cost: see RecordDataset; the
    indexes of shards are kept where costs are. Raises FileNotFoundError and ValueError (damaged
    shard, key that occurs twice, no samples).
    """

    FORMAT, EXTENSIONS = "tar", (".tar",)
    HINT = "; members must be named key.extension"

    def find_files(self, pattern: Pattern) -> tuple[Any, ...]:
        """Return the files of a pattern, sorted, each once: paths, and StoreFiles for URLs.

        A folder means its *.tar. With a root, URLs are refused unless this process was told which
        ones jobs of others may name (`restrict_urls`). Raises what `find_shards` and `list_urls`
        raise.
        """
        patterns = texts(pattern)
        urls = [text for text in patterns if is_url(text)]
        if not urls:
            return find_shards(pattern, self.root)
        from ..stores.allowed import are_restricted  # what is local does without
        from ..stores.files import list_urls

        if self.root is not None and not are_restricted():
            raise ValueError(
                f"{shown(urls[0])!r} is no path below the root {self.root}: URLs are read where "
                "the process says which (counterpoise worker --allow-url PREFIX)"
            )
        local = [text for text in patterns if not is_url(text)]
        stored = [file for url in urls for file in list_urls(url)]
        ordered = sorted(dict.fromkeys(stored), key=lambda file: file.url)
        return (*(find_shards(local, self.root) if local else ()), *ordered)

    def open_files(self) -> Sequence[int]:
        """Open the kept indexes, or read the headers; ValueError as the class says."""
        self._indexes = _open_indexes(self.files, self.cache)
        self.reads_stores = any(not isinstance(shard, Path) for shard in self.files)
        return [len(index) for index in self._indexes]

    def name(self, number: int, row: int) -> str:
        """Return a sample's name in the shard."""
        return self._indexes[number].name(row)

    def kept_index(self, number: int) -> Path:
        """Return where a shard's index is kept."""
        return kept_path(self.files[number], "index.npz", self.cache)

    def file_digest(self, number: int) -> str:
        """Return a hash of a shard's keys and places."""
        return self._indexes[number].digest

    def stamp(self, number: int) -> Stamp:
        """Return what identifies a shard's state, in a copy of one that prepare wrote, too."""
        return shard_stamp(self.files[number])

    def read(self, number: int, row: int, headers: bool) -> dict[str, Any]:
        """Return the members by extension; with `headers` images, video and audio as files."""
        index, shard = self._indexes[number], self.files[number]
        if row in index.faults:
            raise ValueError(index.faults[row])
        members = index.sample(row)
        for member in members:
            refuse_pickled(member.extension)
        if not isinstance(shard, Path):
            parts = read_members(stored_reader(shard), members, headers)
        else:
            reader = ShardReader(str(shard), partial(self._read_ranges, shard))
            parts = read_members(reader, members, headers)
            # All is read, and the shard looked at, before a member is taken for broken.
            self._files.check(shard)
        return {
            name: decode_member(name, data) if isinstance(data, bytes) else data
            for name, data in parts.items()
        }

    def _read_ranges(self, shard: Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self._files.read_range(shard, start, end - start) for start, end in ranges]

    def stored_ranges(self, index: int, headers: bool) -> Iterable[Any]:
        """Return what is read of a sample from a store, with `headers` when it is probed."""
        number, row = self.place(index)
        file: Any = self.files[number]
        if isinstance(file, Path):
            return ()
        members = self._indexes[number].sample(row)
        return [(file, *span) for span in first_ranges(members, headers, STORE_WHOLE_BYTES, HEAD)]


def _open_indexes(shards: tuple[Path, ...], cache: Path | None) -> tuple[ShardIndex, ...]:
    """Open the shards' indexes; kept ones that had to be made again are logged in one line."""
    damaged: list[DamagedFileError] = []
    opened = partial(open_index, cache=cache, report=damaged.append)
    if all(isinstance(shard, Path) for shard in shards):
        indexes = tuple(map(opened, shards))
    else:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            indexes = tuple(pool.map(opened, shards))
    if damaged:
        first, count = damaged[0], len(damaged)
        like_it = f" ({count} of {len(shards)} indexes like it)" if count > 1 else ""
        logger.warning("%s: it is made again%s", first, like_it)
    return indexes
