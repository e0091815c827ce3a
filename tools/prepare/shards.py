"""Divides a source into shards, writes one, and compares what was written with the source.

A shard is a range of the source's samples, decided before the first is written: so its bytes do not
depend on how many processes write, or on what was there when they began.
"""

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ...workers.sources.cache_files import written_file
from ...workers.sources.data_identity import spread
from ...workers.sources.failures import (
    RETRIES,
    SkippedSample,
    classify_failure,
    load_with_retries,
    locate_error,
)
from ...workers.sources.interface import SampleError, Source, source_name
from ...workers.sources.plain import as_source
from ...workers.tar.dataset import TarDataset
from ...workers.tar.headers import BLOCK
from ...workers.tar.index import open_index
from ...workers.tar.writing import REMEDY, ShardWriter, encode_sample, shard_key
from ..analyze.scan.sources import find_dataset

# Samples whose sizes are looked at to divide a source by bytes.
LOOKED_AT = 1024


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard to write: its number and path, and the source's samples start to stop."""

    number: int
    path: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What all tasks share; values only, since it travels: SOURCE, the error policy, --cache."""

    source: str
    skips: bool
    cache: str


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard as it was written: its size, its hash, and by index what was left out of it."""

    number: int
    samples: int
    size: int
    digest: str
    skipped: tuple[tuple[int, SkippedSample], ...] = ()


@lru_cache(maxsize=2)
def open_source(source: str, cache: str) -> Source:
    """Open a SOURCE argument without a transform: what is written are raw samples."""
    return as_source(find_dataset(source, cache or None))


def _encoded(source: Source, index: int) -> tuple[str, dict[str, bytes]]:
    """Return the name and the members of a sample in a shard."""
    name = source_name(source)
    raw = load_with_retries(
        source.raw, time.sleep, RETRIES, source=lambda: name, arguments=(index,)
    )
    return shard_key(str(raw["__key__"])), encode_sample(raw)


def check_source(source: Source) -> None:
    """Raise ValueError for a column that no shard can hold, and a key twice; no sample is read."""
    part, _ = source.origin(0)
    if columns := part.unlike_json:
        raise ValueError(f"column {columns[0]} cannot be written, since JSON has none; {REMEDY}")

    def key(index: int) -> str:
        part, inside = source.origin(index)
        return shard_key(part.key(inside))

    seen = dict[str, int]()
    for index in range(len(source)):
        if (first := seen.setdefault(key(index), index)) != index:
            raise ValueError(
                f"samples {first} and {index} are both called {key(index)!r}; keys must differ"
            )


def plan_shards(source: Source, samples: int | None, size: int) -> list[int]:
    """Return the first sample of each shard: of `samples` samples, or else of about `size` bytes.

    Sizes are those of up to 1,024 samples spread evenly, and in between of what is between them.
    """
    count = len(source)
    if samples is not None:
        return list(range(0, count, samples))
    known = {index: _size(source, index) for index in spread(count, LOOKED_AT)}
    places = [index for index, size in known.items() if size]
    sizes = [known[index] for index in places] or [0]
    ends = np.cumsum(np.interp(np.arange(count), places or [0], sizes))
    shards = ends // size
    return [0, *(1 + np.flatnonzero(np.diff(shards))).tolist()]


def _size(source: Source, index: int) -> int:
    """Return the bytes that a sample takes in a shard; 0 for one that cannot be read."""
    try:
        _, members = _encoded(source, index)
    except Exception as error:
        if classify_failure(error) == "io":
            raise
        return 0
    return sum(BLOCK + -(-len(data) // BLOCK) * BLOCK for data in members.values())


def write_shard(task: ShardTask, settings: SourceOptions) -> WrittenShard:
    """Write a shard and its index; the file has its name once it is whole, and on the disk."""
    source, path = open_source(settings.source, settings.cache), Path(task.path)
    try:
        with written_file(path) as file:
            shard = _write_samples(ShardWriter(file), source, task, settings.skips)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or task.path
        raise
    open_index(path, Path(settings.cache) if settings.cache else None)
    return shard


def _write_samples(
    writer: ShardWriter, source: Source, task: ShardTask, skips: bool
) -> WrittenShard:
    skipped = list[tuple[int, SkippedSample]]()
    for index in range(task.start, task.stop):
        try:
            writer.write(*_encoded(source, index))
        except Exception as error:
            if classify_failure(error) == "io":
                raise
            place = source.locate_file(index) or source_name(source)
            reason = str(error) if isinstance(error, ValueError) else locate_error(error)
            if isinstance(error, SampleError):
                reason, place = error.reason, error.source or place
            if not skips:
                raise SampleError(source.key(index), reason, place) from error
            skipped.append((index, SkippedSample(source.key(index), reason, "data", place)))
    digest = writer.close()
    samples = task.stop - task.start - len(skipped)
    return WrittenShard(task.number, samples, writer.size, digest, tuple(skipped))


def verify_shards(
    written: TarDataset, source: Source, tasks: Sequence[ShardTask], left_out: Collection[int],
    count: int,
) -> int:  # fmt: skip
    """Compare `count` samples, drawn at random, with the source; return how many were compared.

    ValueError for one that differs.
    """
    indexes = [n for task in tasks for n in range(task.start, task.stop) if n not in left_out]
    if len(indexes) != len(written):
        raise ValueError(f"{len(written)} samples were written, and not {len(indexes)}")
    for row in np.random.default_rng(0).permutation(len(indexes))[:count].tolist():
        if _encoded(written, row) != _encoded(source, indexes[row]):
            raise ValueError(
                f"sample {written.key(row)!r} of {written.locate_file(row)} is not what the source "
                f"has as number {indexes[row]}: it gives others each time, or has changed; remove "
                "this shard and run prepare again"
            )
    return min(count, len(indexes))
