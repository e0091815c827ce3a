"""The result of a scan: rows of costs, and the samples that cannot be used with the reason.

Each part of a data set yields `Rows`. Merging all parts in order gives the same result however the
work was split and wherever each part was scanned.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ....workers.tar.array_files import Arrays, read_or_remove, write_arrays

FailureKind = Literal["unreadable", "truncated", "shard"]
# A file's name is a hash of all that its rows depend on, so its stamp need not describe a shard.
STAMP = (0, 0)


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample (kind unreadable or truncated) or a whole shard that cannot be used."""

    key: str
    source: str
    kind: FailureKind
    reason: str


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU time of samples: the number that was timed, and the sum of their nanoseconds."""

    probed: int = 0
    probe_ns: int = 0
    decoded: int = 0
    decode_ns: int = 0

    def __add__(self, other: "CpuTimes") -> "CpuTimes":
        return CpuTimes(
            self.probed + other.probed,
            self.probe_ns + other.probe_ns,
            self.decoded + other.decoded,
            self.decode_ns + other.decode_ns,
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """Usable samples as columns, and failures.

    costs (n, resources); nbytes (n,), a sample's decoded bytes or -1 if unknown; source_of (n,), an
    index into `sources`; keys: n names, or none if samples have only a row number.
    """

    resources: tuple[str, ...]
    costs: Int64
    nbytes: Int64
    source_of: Int64
    sources: tuple[str, ...]
    keys: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    cpu_times: CpuTimes = field(default_factory=CpuTimes)

    def __len__(self) -> int:
        return len(self.costs)

    def key(self, row: int) -> str:
        """Return the name of a sample."""
        return self.keys[row] if self.keys else f"row {row}"

    def column(self, name: str) -> Int64:
        """Return the costs of one resource; zeros if there is no such resource."""
        if name not in self.resources:
            return np.zeros(len(self.costs), np.int64)
        return self.costs[:, self.resources.index(name)]


def no_rows(failures: Sequence[Failure] = ()) -> Rows:
    """Return rows without samples, and so without resources."""
    none = np.zeros(0, np.int64)
    return Rows((), none.reshape(0, 0), none, none, (), (), tuple(failures))


def merge(parts: Iterable[Rows]) -> Rows:
    """Return all rows in one, in order; raises ValueError if the resources differ.

    >>> one = Rows(("tokens",), np.array([[5]]), np.array([9]), np.array([0]), ("web",), ("a",))
    >>> both = merge([one, no_rows(), one])
    >>> both.costs.tolist(), both.keys, both.sources, both.source_of.tolist()
    ([[5], [5]], ('a', 'a'), ('web',), [0, 0])
    """
    every = list(parts)
    filled = [part for part in every if len(part)]
    failures = tuple(failure for part in every for failure in part.failures)
    cpu_times = sum((part.cpu_times for part in every), CpuTimes())
    # Without samples there are no resources to compare, only failures and times.
    if not filled:
        return replace(no_rows(failures), cpu_times=cpu_times)
    # Each part numbers its own sources, so they get new numbers in the order of the parts.
    names = dict.fromkeys(name for part in filled for name in part.sources)
    numbers = {name: number for number, name in enumerate(names)}
    return Rows(
        resources=_common_resources(filled),
        costs=np.concatenate([part.costs for part in filled]),
        nbytes=np.concatenate([part.nbytes for part in filled]),
        source_of=np.concatenate([_renumber_sources(part, numbers) for part in filled]),
        sources=tuple(numbers),
        keys=_merge_keys(filled),
        failures=failures,
        cpu_times=cpu_times,
    )


def select_rows(rows: Rows, numbers: Int64) -> Rows:
    """Return the rows of those numbers, in that order; failures stay."""
    keys = tuple(rows.keys[k] for k in numbers.tolist()) if rows.keys else ()
    columns = (rows.costs[numbers], rows.nbytes[numbers], rows.source_of[numbers])
    return Rows(rows.resources, *columns, rows.sources, keys, rows.failures, rows.cpu_times)


def select_resources(rows: Rows, names: tuple[str, ...]) -> Rows:
    """Return the rows with these costs only, all if none is named; ValueError for a missing one."""
    if not len(rows) or not names:
        return rows
    if missing := [name for name in names if name not in rows.resources]:
        raise ValueError(
            f"no cost {missing[0]!r}; name one of {', '.join(rows.resources)} with --resource"
        )
    columns = [rows.resources.index(name) for name in names]
    return replace(rows, resources=names, costs=rows.costs[:, columns])


def save_rows(path: Path, rows: Rows) -> bool:
    """Write rows to a file, replacing it as a whole; return False if it cannot be written."""
    about = {
        "resources": rows.resources,
        "sources": rows.sources,
        "keys": rows.keys,
        "failures": [asdict(failure) for failure in rows.failures],
        "cpu_times": asdict(rows.cpu_times),
    }
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    arrays: Arrays = {name: getattr(rows, name) for name in ("costs", "nbytes", "source_of")}
    return write_arrays(path, STAMP, {**arrays, "about": text})


def load_rows(path: Path) -> Rows | None:
    """Return the rows that `save_rows` wrote, None if the file is missing or damaged."""
    arrays = read_or_remove(path, STAMP)
    if arrays is None or "about" not in arrays:
        return None
    about = json.loads(arrays.pop("about").tobytes())
    return Rows(
        resources=tuple(about["resources"]),
        sources=tuple(about["sources"]),
        keys=tuple(about["keys"]),
        failures=tuple(Failure(**failure) for failure in about["failures"]),
        cpu_times=CpuTimes(**about["cpu_times"]),
        **arrays,
    )


def _common_resources(parts: Sequence[Rows]) -> tuple[str, ...]:
    """Return the resources of all parts; ValueError if they differ."""
    resources = parts[0].resources
    for part in parts:
        if part.resources != resources:
            raise ValueError(
                f"one part has costs of {', '.join(resources)}, another of "
                f"{', '.join(part.resources)}; analyze them one by one, or name those that all "
                "have with --resource"
            )
    return resources


def _merge_keys(parts: Sequence[Rows]) -> tuple[str, ...]:
    """Return all keys; if only some parts have keys, row numbers stand in for the others'."""
    if not any(part.keys for part in parts):
        return ()
    return tuple(part.key(row) for part in parts for row in range(len(part)))


def _renumber_sources(part: Rows, numbers: dict[str, int]) -> Int64:
    return np.array([numbers[name] for name in part.sources], np.int64)[part.source_of]
