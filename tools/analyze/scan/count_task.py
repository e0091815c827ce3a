"""The scan of one task: a pure map from a piece of a data set to `Rows`, runnable anywhere.

Tar shards go through the same TarDataset and transform as training does, so that what is found here
(indexes, costs) is kept where training finds it again. A shard that cannot be opened, and samples
that cannot be measured, become failures; only a failing disk ends the scan.
"""

import importlib
import re
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ....workers.sources.failures import kind_of, reason_of
from ....workers.sources.interface import Probe, Source, as_source, checked_probe, sample_nbytes
from ....workers.tar.dataset import TarDataset
from ....workers.tar.index import NAME
from ....workers.vision_language.transform import VisionLanguage
from .rows import Clock, Failure, Kind, Rows, merge, nothing
from .sources import ScanTask
from .tables import read_table

# Costs that go to their file in one write: a killed scan measures at most one fewer again.
KEPT_TOGETHER = 64
# Of samples that are not decoded one in so many is timed: asking for the CPU time takes time.
TIMED = 16
CUT = re.compile(r"truncat|ends without|ends before|not enough image data|incomplete", re.I)


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """How to scan: the transform (arguments of VisionLanguage, or an import path), what to keep.

    cost: import path of a function from a loaded sample to its cost; tables: the columns wanted.
    """

    transform: tuple[tuple[str, Any], ...] = ()
    imported: str = ""
    cost: str = ""
    tables: tuple[str, ...] = ()
    decode: bool = False
    source_field: str = "source"
    cache: str = ""


def scan(task: ScanTask, how: ScanOptions) -> Rows:
    """Return what a task's samples cost and which of them cannot be used."""
    if task.kind == "table":
        return read_table(Path(task.paths[0]), how.tables)
    if task.kind == "dataset":
        source = open_dataset(task.paths[0], how)
        chosen = task.chosen[0] if task.chosen is not None else range(task.start, task.stop)
        label = task.paths[0].partition(":")[2]
        return _measured(source, chosen, how, lambda _: label)
    every = task.chosen or (None,) * len(task.paths)
    return merge(
        _shard(Path(path), rows, how) for path, rows in zip(task.paths, every, strict=True)
    )


def count(task: ScanTask, how: ScanOptions) -> tuple[int, ...]:
    """Return the samples of every shard of a task (headers only); -1 for one that is broken."""
    if task.kind == "dataset":
        return (len(open_dataset(task.paths[0], how)),)
    if task.kind == "table":
        return (-1,)
    counts = []
    for path in task.paths:
        try:
            counts.append(len(_opened(Path(path), how)))
        except ValueError:
            counts.append(-1)
    return tuple(counts)


def _shard(path: Path, rows: Sequence[int] | None, how: ScanOptions) -> Rows:
    try:
        dataset = _opened(path, how)
    except ValueError as error:
        return nothing(_broken(path, str(error)))
    label = _series(path)

    def source_of(index: int) -> str:
        return _named(dataset, index, how.source_field) or label

    try:
        return _measured(dataset, range(len(dataset)) if rows is None else rows, how, source_of)
    finally:
        dataset.keep()


def _series(path: Path) -> str:
    """The name that a shard has in common with its like; the folder's where it is all digits.

    >>> _series(Path("web-00012.tar")), _series(Path("laion/00012.tar"))
    ('web', 'laion')
    """
    stem = path.name.partition(".")[0].rstrip("0123456789").rstrip("-_")
    return stem or path.absolute().parent.name or path.name


class _Watched(TarDataset):
    """A shard that remembers the sample it read last, so that its source need not be read again."""

    keep_every = KEPT_TOGETHER
    last: Mapping[str, Any] = {}

    def raw(self, index: int, headers: bool = False) -> dict[str, Any]:
        found = super().raw(index, headers)
        self.last = found
        return found


def _opened(path: Path, how: ScanOptions) -> _Watched:
    cost = imported(how.cost) if how.cost else None
    return _Watched([path], make_transform(how), cache=how.cache or None, cost=cost)


def _broken(path: Path, reason: str) -> list[Failure]:
    """A shard that cannot be used: the samples before the cut by name, where it is one."""
    names = _names_before_cut(path) if CUT.search(reason) else []
    if not names:
        return [Failure(path.name, path.name, "shard", reason)]
    return [Failure(name, path.name, "truncated", reason) for name in names]


def _names_before_cut(path: Path) -> list[str]:
    keys: dict[str, None] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if match := NAME.fullmatch(member.name):
                    keys.setdefault(match[1])
    except (tarfile.TarError, OSError, EOFError):
        pass
    return list(keys)


def _named(dataset: _Watched, index: int, field: str) -> str:
    """The source that a sample's JSON names."""
    raw = dataset.last
    try:
        if raw.get("__key__") != dataset.key(index):
            raw = dataset.raw(index, headers=True)
    except (ValueError, OSError):
        return ""
    about = raw.get("json")
    found = about.get(field) if isinstance(about, Mapping) else None
    return str(found) if found is not None else ""


def _measured(
    source: Source, rows: Sequence[int], how: ScanOptions, source_of: Callable[[int], str]
) -> Rows:
    probes, failures, numbers = list[Probe](), list[Failure](), dict[str, int]()
    labels, times = list[int](), list[tuple[int, int]]()
    for number, index in enumerate(rows):
        clock = time.process_time_ns if how.decode or number % TIMED == 0 else _no_clock
        try:
            found, *took = _look(source, index, how.decode, clock)
        except Exception as error:
            if kind_of(error) == "io":
                raise
            failures.append(_failure(source.key(index), source_of(index), error))
            continue
        label = source_of(index)
        times.append((took[0], took[1]))
        if probes and found.cost.keys() != probes[0].cost.keys():
            reason = f"costs {', '.join(found.cost)}, others {', '.join(probes[0].cost)}"
            failures.append(Failure(found.key, label, "unreadable", reason))
            continue
        probes.append(found)
        labels.append(numbers.setdefault(label, len(numbers)))
    spent = _spent(times)
    if not probes:
        return replace(nothing(failures), clock=spent)
    return Rows(
        resources=tuple(probes[0].cost),
        costs=np.array([list(one.cost.values()) for one in probes], np.int64),
        nbytes=np.array([-1 if one.nbytes is None else one.nbytes for one in probes], np.int64),
        source_of=np.array(labels, np.int64),
        sources=tuple(numbers),
        keys=tuple(one.key for one in probes),
        failures=tuple(failures),
        clock=spent,
    )


def _look(
    source: Source, index: int, decode: bool, clock: Callable[[], int]
) -> tuple[Probe, int, int]:
    """A sample's probe, and nanoseconds of probing and decoding by a clock; 0: not done."""
    known = getattr(source, "known", None)
    found: Probe | None = known(index) if known is not None else None
    began = clock()
    probed = decoded = began
    if found is None:
        found = checked_probe(source.probe(index))
        probed = decoded = clock()
    if decode:
        sample = source.load(index, epoch=0, seed=0)
        decoded = clock()
        found = Probe(found.key, found.cost, sample_nbytes(sample))
    return found, probed - began, decoded - probed


def _no_clock() -> int:
    return 0


def _spent(times: Sequence[tuple[int, int]]) -> Clock:
    both = np.array(times, np.int64).reshape(-1, 2)
    (probed, decoded), (probe_ns, decode_ns) = (both > 0).sum(axis=0), both.sum(axis=0)
    return Clock(int(probed), int(probe_ns), int(decoded), int(decode_ns))


def _failure(key: str, label: str, error: Exception) -> Failure:
    reason = reason_of(error)
    kind: Kind = "truncated" if CUT.search(reason) else "unreadable"
    return Failure(key, label, kind, reason)


@lru_cache(maxsize=4)
def make_transform(how: ScanOptions) -> Any:
    """Return the transform: what the import path names (called if it is a class), or ours."""
    if how.imported:
        found = imported(how.imported)
        return found() if isinstance(found, type) else found
    options = dict(how.transform)
    tokenizer = options.pop("tokenizer", "")
    return VisionLanguage(_instance(tokenizer) if tokenizer else None, **options)


@lru_cache(maxsize=4)
def open_dataset(path: str, how: ScanOptions) -> Source:
    """Return the map-style dataset at package.module:name; a class or function is called first."""
    found = imported(path)
    dataset = found if hasattr(found, "__getitem__") and not isinstance(found, type) else found()
    return as_source(dataset, cost=imported(how.cost) if how.cost else None)


def imported(path: str) -> Any:
    """Return what package.module:name names; ValueError says what is missing."""
    module, _, name = path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{path}: {error}; run where it can be imported") from None
    except AttributeError:
        raise ValueError(f"{path}: module {module} has no {name!r}") from None


def _instance(path: str) -> Any:
    found = imported(path)
    return found() if isinstance(found, type) else found
