"""What a scan finds, in a form that merges: rows of costs, and what could not be used and why.

Every part of a data set gives `Rows`; `merge` of all of them in order is the same however the work
was split, and on whichever machine each part was scanned.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ....workers.tar.cache_files import Arrays, read_arrays, write_arrays

Kind = Literal["unreadable", "truncated", "shard"]
KEPT = (0, 0)  # a kept part's name says what it is about, its stamp need not


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample (kind unreadable or truncated) or a whole shard that cannot be used."""

    key: str
    source: str
    kind: Kind
    reason: str


@dataclass(frozen=True, slots=True)
class Clock:
    """CPU time spent on samples: how many were timed, and nanoseconds of all together."""

    probed: int = 0
    probe_ns: int = 0
    decoded: int = 0
    decode_ns: int = 0

    def __add__(self, other: "Clock") -> "Clock":
        return Clock(
            self.probed + other.probed,
            self.probe_ns + other.probe_ns,
            self.decoded + other.decoded,
            self.decode_ns + other.decode_ns,
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """Usable samples as columns, and failures.

    costs (n, resources); nbytes (n,), a sample's decoded bytes or -1; source_of (n,), a number in
    `sources`; keys n names, or none at all where samples have only their row number.
    """

    resources: tuple[str, ...]
    costs: Int64
    nbytes: Int64
    source_of: Int64
    sources: tuple[str, ...]
    keys: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    clock: Clock = field(default_factory=Clock)

    def __len__(self) -> int:
        return len(self.costs)

    def key(self, row: int) -> str:
        """Return the name of a sample."""
        return self.keys[row] if self.keys else f"row {row}"

    def column(self, name: str) -> Int64:
        """Return one resource's costs; zeros where there is no such resource."""
        if name not in self.resources:
            return np.zeros(len(self.costs), np.int64)
        return self.costs[:, self.resources.index(name)]


def nothing(failures: Sequence[Failure] = ()) -> Rows:
    """Return rows without samples, and so without resources."""
    none = np.zeros(0, np.int64)
    return Rows((), none.reshape(0, 0), none, none, (), (), tuple(failures))


def merge(parts: Iterable[Rows]) -> Rows:
    """Return all rows in one, in order; raises ValueError if the resources differ.

    >>> one = Rows(("tokens",), np.array([[5]]), np.array([9]), np.array([0]), ("web",), ("a",))
    >>> both = merge([one, nothing(), one])
    >>> both.costs.tolist(), both.keys, both.sources, both.source_of.tolist()
    ([[5], [5]], ('a', 'a'), ('web',), [0, 0])
    """
    every = list(parts)
    some = [part for part in every if len(part)]
    failures = tuple(failure for part in every for failure in part.failures)
    clock = sum((part.clock for part in every), Clock())
    if not some:
        return replace(nothing(failures), clock=clock)
    resources = some[0].resources
    for part in some:
        if part.resources != resources:
            raise ValueError(
                f"one part has costs of {', '.join(resources)}, another of "
                f"{', '.join(part.resources)}; analyze them one by one, or name those that all "
                "have with --resource"
            )
    numbers: dict[str, int] = {}
    for part in some:
        for name in part.sources:
            numbers.setdefault(name, len(numbers))
    named = any(part.keys for part in some)
    return Rows(
        resources=resources,
        costs=np.concatenate([part.costs for part in some]),
        nbytes=np.concatenate([part.nbytes for part in some]),
        source_of=np.concatenate([_renumbered(part, numbers) for part in some]),
        sources=tuple(numbers),
        keys=tuple(key for part in some for key in _keys(part)) if named else (),
        failures=failures,
        clock=clock,
    )


def take(rows: Rows, chosen: Int64) -> Rows:
    """Return the rows of those numbers, in that order; failures stay."""
    keys = tuple(rows.keys[k] for k in chosen.tolist()) if rows.keys else ()
    columns = (rows.costs[chosen], rows.nbytes[chosen], rows.source_of[chosen])
    return Rows(rows.resources, *columns, rows.sources, keys, rows.failures, rows.clock)


def only(rows: Rows, names: tuple[str, ...]) -> Rows:
    """Return the rows with these costs only; ValueError for one that is not there."""
    if not len(rows) or not names:
        return rows
    if missing := [name for name in names if name not in rows.resources]:
        raise ValueError(f"no cost {missing[0]!r}; there are {', '.join(rows.resources)}")
    columns = [rows.resources.index(name) for name in names]
    return replace(rows, resources=names, costs=rows.costs[:, columns])


def keep(path: Path, rows: Rows) -> bool:
    """Write rows to a file as a whole; return whether that was possible."""
    about = {
        "resources": rows.resources,
        "sources": rows.sources,
        "keys": rows.keys,
        "failures": [asdict(failure) for failure in rows.failures],
        "clock": asdict(rows.clock),
    }
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    arrays: Arrays = {name: getattr(rows, name) for name in ("costs", "nbytes", "source_of")}
    return write_arrays(path, KEPT, {**arrays, "about": text})


def kept(path: Path) -> Rows | None:
    """Return what `keep` wrote, or None where there is nothing of use."""
    arrays = read_arrays(path, KEPT)
    if arrays is None or "about" not in arrays:
        return None
    about = json.loads(arrays.pop("about").tobytes())
    return Rows(
        resources=tuple(about["resources"]),
        sources=tuple(about["sources"]),
        keys=tuple(about["keys"]),
        failures=tuple(Failure(**failure) for failure in about["failures"]),
        clock=Clock(**about["clock"]),
        **arrays,
    )


def _renumbered(part: Rows, numbers: dict[str, int]) -> Int64:
    return np.array([numbers[name] for name in part.sources], np.int64)[part.source_of]


def _keys(part: Rows) -> Iterable[str]:
    return part.keys or (part.key(row) for row in range(len(part)))
