"""SOURCE arguments to tasks: what there is to scan, cut into pieces that can be done anywhere."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ....workers.sources.file_patterns import find_shards
from ....workers.sources.fingerprint import digest
from .tables import SUFFIXES

TASK_BYTES = 16 << 20
TASK_SHARDS = 256
TASK_ROWS = 1024
Seen = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A piece of a data set: whole tar shards, one table, or rows start to stop of a dataset.

    chosen: for every shard (or for the dataset) the rows to look at; None for all.
    """

    kind: Literal["tar", "table", "dataset"]
    paths: tuple[str, ...]
    start: int = 0
    stop: int = 0
    chosen: tuple[tuple[int, ...], ...] | None = None

    def about(self) -> str:
        """Return a hash that changes with the files and the rows; OSError where one is gone."""
        files = self.kind != "dataset"
        state = [_identity(path) for path in self.paths] if files else []
        absolute = [os.path.abspath(path) for path in self.paths] if files else self.paths  # noqa: PTH100
        return digest([self.kind, absolute, state, self.start, self.stop, self.chosen])


def find_tasks(sources: Sequence[str], seen: Seen) -> list[ScanTask]:
    """Return the tasks of all sources, files sorted within each; seen(count) tells how many so far.

    A source is a tar shard, a folder of them, a glob or brace pattern, a table (npz, jsonl,
    parquet), or a dataset as package.module:name. Raises FileNotFoundError and ValueError.
    """
    tasks = list[ScanTask]()
    for source in sources:
        if is_import_path(source):
            tasks.append(ScanTask("dataset", (source,)))
            continue
        files = _files(source, seen)
        tasks += [ScanTask("table", (path,)) for path, _ in files if path.endswith(SUFFIXES)]
        tasks += _tar_tasks([file for file in files if not file[0].endswith(SUFFIXES)])
    return tasks


def is_import_path(source: str) -> bool:
    """Whether a source names a dataset in Python rather than files.

    >>> is_import_path("my_data.train:dataset"), is_import_path("shards/a.tar")
    (True, False)
    """
    module, colon, name = source.partition(":")
    dotted = all(part.isidentifier() for part in module.split("."))
    return bool(colon) and dotted and name.isidentifier()


def _identity(path: str) -> tuple[int, int]:
    """What tells one state of a file from another, without a Path for each of a million."""
    state = os.stat(path)  # noqa: PTH116
    return state.st_size, state.st_mtime_ns


def _files(source: str, seen: Seen) -> list[tuple[str, int]]:
    """Files and their sizes. A folder is walked entry by entry: a million stay responsive."""
    if not Path(source).is_dir():
        files = [(str(path), path.stat().st_size) for path in find_shards(source)]
        seen(len(files))
        return files
    files = []
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.name.endswith((".tar", *SUFFIXES)) and not entry.name.endswith(".index.npz"):
                files.append((entry.path, entry.stat().st_size))
                if len(files) % 1000 == 0:
                    seen(len(files))
    seen(len(files))
    if not files:
        raise FileNotFoundError(
            f"{source} holds no *.tar, {', '.join('*' + s for s in SUFFIXES)}; check the path"
        )
    return sorted(files)


def _tar_tasks(files: Sequence[tuple[str, int]]) -> Iterator[ScanTask]:
    batch, size = list[str](), 0
    for path, length in files:
        if batch and (size + length > TASK_BYTES or len(batch) == TASK_SHARDS):
            yield ScanTask("tar", tuple(batch))
            batch, size = [], 0
        batch.append(path)
        size += length
    if batch:
        yield ScanTask("tar", tuple(batch))
