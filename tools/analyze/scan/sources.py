"""Turns SOURCE arguments into tasks, and opens what they and the options name.

A task is a piece of a data set that any process can scan.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ....balancer.planning.problem.shuffle import permutation
from ....workers.discovery import FIRST, FoundCosts, FoundSource, find_costs, hold_first
from ....workers.hf_processor.records import MEDIA_COLUMNS
from ....workers.mixture.mixture import Mixture
from ....workers.mixture.recipe_files import is_recipe
from ....workers.sources.failures import classify_failure
from ....workers.sources.file_patterns import find_shards
from ....workers.sources.fingerprint import digest
from ....workers.sources.interface import Source
from ....workers.sources.plain import as_source
from ....workers.sources.registry import find_format_class, open_data
from ....workers.sources.urls import is_url, shown
from ....workers.stores.files import list_urls, open_url
from ....workers.tar.dataset import TarDataset
from ....workers.vision_language.chats import CHATS, DOCUMENTS
from ....workers.vision_language.transform import VisionLanguage
from ...inputs.files import SUFFIXES, first_row, is_table
from .rows import DEFAULT_RESOURCES

# First samples that are held whatever their size: as many as a loader collates at batch size 4.
LEAST_HELD = 16


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """The settings of a scan: values only, since they travel to other machines.

    transform_path: VisionLanguage by default. cost_path: import path of a function from a loaded
    sample to its cost. resources: the costs to keep, all by default. cache: folder for indexes and
    costs, beside the shards by default. found_costs: what samples cost, where the data do not say
    it (`with_found_costs`).
    """

    transform_path: str = ""
    cost_path: str = ""
    resources: tuple[str, ...] = ()
    decode: bool = False
    cache: str = ""
    found_costs: FoundCosts | None = None


@lru_cache(maxsize=4)
def make_transform(options: ScanOptions) -> Any:
    """Return the transform at transform_path (called first if it is a class), or VisionLanguage."""
    if not options.transform_path:
        return VisionLanguage()
    transform = import_object(options.transform_path)
    return transform() if isinstance(transform, type) else transform


def shard_series(path: Path) -> str:
    """Return the name that numbered shards share; the folder's name if there is only a number.

    >>> shard_series(Path("web-00012.tar")), shard_series(Path("laion/00012.tar"))
    ('web', 'laion')
    """
    stem = path.name.partition(".")[0].rstrip("0123456789").rstrip("-_")
    return stem or path.absolute().parent.name or path.name


@lru_cache(maxsize=4)
def open_dataset(path: str, options: ScanOptions) -> Source:
    """Return the data set at package.module:name, in a recipe, or in files of any format but tar.

    A class or function is called first; files are opened with the options' transform.
    """
    if not (is_import_path(path) or is_recipe(path)):
        opened: Source = _open_files(path, find_format_class(path), options)
        return opened
    dataset = find_dataset(path)
    source = as_source(dataset, cost=cost_function(options))
    if options.found_costs is None or source.knows_costs:
        return source
    return FoundSource(dataset, options.found_costs, None)


def find_dataset(path: str, cache: str | None = None) -> Any:
    """Return the data set at package.module:name, in a recipe's file, or in files of any format.

    A class or function is called first; files are opened without a transform.
    """
    if is_recipe(path):
        return Mixture.from_file(path)
    if not is_import_path(path):
        return open_data(path, cache=cache)
    dataset = import_object(path)
    is_dataset = hasattr(dataset, "__getitem__") and not isinstance(dataset, type)
    return dataset if is_dataset else dataset()


def open_shard(path: str, options: ScanOptions) -> Any:
    """Open one shard with the options' transform; ValueError if it is no tar or is cut off."""
    return _open_files([path], TarDataset, options)


def _open_files(pattern: Any, kind: Callable[..., Any], options: ScanOptions) -> Any:
    transform = make_transform(options)
    cost = cost_function(options)
    if cost is None and options.found_costs is not None and not hasattr(transform, "probe"):
        cost = options.found_costs.measure
    return kind(pattern, transform=transform, cache=options.cache or None, cost=cost)


def cost_function(options: ScanOptions) -> Any:
    """Return the function at cost_path, None if none is named."""
    return import_object(options.cost_path) if options.cost_path else None


def with_found_costs(tasks: Sequence["ScanTask"], options: ScanOptions) -> ScanOptions:
    """Return the options with what samples cost, where a data set or a transform does not say it.

    It is found in the samples that balance="auto" looks at, so it is the same. Options that name a
    cost, and data that say theirs or whose samples are all of one size, are left as they are.
    """
    unknown = list[Source]()
    for task in () if options.cost_path else tasks:
        if task.kind == "dataset":
            unknown += [open_dataset(path, options) for path in task.paths]
        elif task.kind == "tar" and not hasattr(make_transform(options), "probe"):
            for path in task.paths:
                with suppress(ValueError):  # the scan says which shards are broken, and why
                    unknown.append(open_shard(path, options))
    unknown = [source for source in unknown if not source.knows_costs]
    samples = hold_first(_first_samples(unknown), LEAST_HELD) if unknown else []
    costs = find_costs(samples) if samples else None
    return replace(options, found_costs=costs) if costs is not None and costs.found else options


def _first_samples(sources: Sequence[Source]) -> Iterator[Any]:
    """Yield the samples that balance="auto" looks at in a ConcatDataset; broken ones left out."""
    ends = np.cumsum([len(source) for source in sources])
    for index in permutation(int(ends[-1]), 0, 0)[:FIRST].tolist():
        part = int(np.searchsorted(ends, index, side="right"))
        source = sources[part]
        try:
            yield source.load(index - int(ends[part]) + len(source), epoch=0, seed=0)
        except Exception as error:
            if classify_failure(error) == "io":
                raise


def import_object(path: str) -> Any:
    """Return the object at package.module:name; ValueError if there is none."""
    module, _, name = path.partition(":")
    # An installed script does not look in the current folder, where a user's module often is.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{path}: {error}; run from a folder where it can be imported, or set PYTHONPATH"
        ) from None
    except AttributeError:
        raise ValueError(f"{path}: module {module} has no {name!r}; check the name") from None


# Files that people have, and that are neither shards nor one of SUFFIXES.
NO_SOURCES = (
    ".csv", ".tsv", ".json", ".txt", ".xlsx", ".npy", ".pkl", ".pickle", ".pt", ".pth", ".gz",
    ".zst", ".zip", ".feather", ".arrow",
)  # fmt: skip
TASK_BYTES = 16 << 20
TASK_SHARDS = 256
TASK_ROWS = 1024


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A piece of a data set: whole tar shards, one table, or rows start to stop of any other.

    chosen: for each shard (or for the dataset) the rows to measure; None for all.
    """

    kind: Literal["tar", "table", "dataset"]
    paths: tuple[str, ...]
    start: int = 0
    stop: int = 0
    chosen: tuple[tuple[int, ...], ...] | None = None

    def fingerprint(self) -> str:
        """Return a hash that changes with the files and the rows; OSError if a file is gone."""
        is_files = self.kind != "dataset"
        states = [_file_state(path) for path in self.paths] if is_files else []
        paths = [_place(path) for path in self.paths] if is_files else self.paths
        return digest([self.kind, paths, states, self.start, self.stop, self.chosen])


def find_tasks(sources: Sequence[str]) -> list[ScanTask]:
    """Return the tasks of all sources, files sorted within each.

    A source is a tar shard, a folder of them, a glob or brace pattern, a URL of these, records of
    another format (JSONL), a table of costs (npz, jsonl, parquet), a recipe of a mixture, or a
    dataset as package.module:name. Raises FileNotFoundError and ValueError.
    """
    open_dataset.cache_clear()  # what a path names may be another file by now
    tasks = list[ScanTask]()
    for source in sources:
        if is_import_path(source) or is_recipe(source):
            tasks.append(ScanTask("dataset", (source,)))
            continue
        if is_url(source) and is_table(source):
            raise ValueError(f"{shown(source)}: tables are read from local files; copy it")
        if has_records(source):
            tasks.append(ScanTask("dataset", (source,)))
            continue
        if source.lower().endswith(NO_SOURCES):
            raise ValueError(
                f"{source} is neither tar shards nor a table that can be read: give costs as "
                f"{', '.join(SUFFIXES)}, or a dataset as package.module:name"
            )
        files = _files(source)
        tasks += [ScanTask("table", (path,)) for path, _ in files if is_table(path)]
        tasks += _tar_tasks([file for file in files if not is_table(file[0])])
    return tasks


def is_import_path(source: str) -> bool:
    """Return True if a source names a dataset in Python, not files.

    >>> is_import_path("my_data.train:dataset"), is_import_path("shards/a.tar")
    (True, False)
    """
    module, colon, name = source.partition(":")
    dotted = all(part.isidentifier() for part in module.split("."))
    return bool(colon) and dotted and name.isidentifier()


def reads_samples(source: str) -> bool:
    """Return True if a source is files of samples, or a folder that may hold some.

    >>> reads_samples("a.tar"), reads_samples("costs.npz"), reads_samples("my_data:dataset")
    (True, False, False)
    """
    if is_import_path(source) or is_recipe(source):
        return False
    return not is_table(source) or has_records(source)


def has_records(source: str) -> bool:
    """Return True if files are records of another format than tar, and no tables of costs."""
    try:
        kind = find_format_class(source)
        files = find_shards(source, extensions=kind.EXTENSIONS) if kind.EXTENSIONS else ()
    except (ValueError, FileNotFoundError):
        return False
    return kind is not TarDataset and not (files and _has_costs(files[0]))


def _has_costs(path: Path) -> bool:
    """Return True if a file's first row has costs, or at least numbers and no text or media."""
    row = first_row(path) if is_table(path.name) or path.suffix.lower() == ".json" else {}
    if row is None or any(name in row for name in DEFAULT_RESOURCES):
        return True
    is_record = any(name in row for name in (*CHATS, *DOCUMENTS, *MEDIA_COLUMNS))
    return not is_record and any(isinstance(value, int | float) for value in row.values())


def _place(path: str) -> str:
    return shown(path) if is_url(path) else os.path.abspath(path)  # noqa: PTH100


def _file_state(path: str) -> tuple[int, int]:
    """Return a file's size and modification time, without a Path: there may be a million files."""
    if is_url(path):
        return open_url(path).stamp
    state = os.stat(path)  # noqa: PTH116
    return state.st_size, state.st_mtime_ns


def _files(source: str) -> list[tuple[str, int]]:
    """Return files and their sizes."""
    if is_url(source):
        return [(file.url, file.size) for file in list_urls(source)]
    if not Path(source).is_dir():
        return [(str(path), path.stat().st_size) for path in find_shards(source)]
    with os.scandir(source) as entries:
        files = [
            (entry.path, entry.stat().st_size)
            for entry in entries
            if (entry.name.endswith(".tar") or is_table(entry.name))
            and not entry.name.endswith(".index.npz")
        ]
    if not files:
        raise FileNotFoundError(
            f"{source} holds no *.tar, {', '.join('*' + s for s in SUFFIXES)}; check the path"
        )
    return sorted(files)


def _tar_tasks(files: Sequence[tuple[str, int]]) -> Iterator[ScanTask]:
    """Yield tasks of consecutive shards, each of at most TASK_BYTES (or one shard)."""
    batch, size = list[str](), 0
    for path, length in files:
        if batch and (size + length > TASK_BYTES or len(batch) == TASK_SHARDS):
            yield ScanTask("tar", tuple(batch))
            batch, size = [], 0
        batch.append(path)
        size += length
    if batch:
        yield ScanTask("tar", tuple(batch))
