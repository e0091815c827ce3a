"""The result of a scan: rows of costs, and the samples that cannot be used with the reason.

Each part of a data set yields `Rows`. Merging all parts in order gives the same result however the
work was split and wherever each part was scanned.

They are read from a table, too: npz, JSONL or parquet, with a column per resource and a row per
sample. Two columns are not resources: `key` (the sample's name) and `source` (a name, or an index
into the npz array `sources`). A value that is missing, NaN, negative or not a whole number makes
its row unreadable; the other rows stay.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ....balancer.planning.kernels.arrays import Int64
from ....workers.sources.cache_files import Arrays, read_or_remove, write_arrays
from ....workers.sources.costs import MAX_COST, bad_cost
from ...inputs.files import Column, Table, open_table

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
class Rows:
    """Usable samples as columns, and failures.

    costs (n, resources); source_of (n,), an index into `sources`; keys: n names, or none if samples
    have only a row number.
    """

    resources: tuple[str, ...]
    costs: Int64
    source_of: Int64
    sources: tuple[str, ...]
    keys: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()

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
    return Rows((), none.reshape(0, 0), none, (), (), tuple(failures))


def merge(parts: Iterable[Rows]) -> Rows:
    """Return all rows in one, in order; raises ValueError if the resources differ.

    >>> one = Rows(("tokens",), np.array([[5]]), np.array([0]), ("web",), ("a",))
    >>> both = merge([one, no_rows(), one])
    >>> both.costs.tolist(), both.keys, both.sources, both.source_of.tolist()
    ([[5], [5]], ('a', 'a'), ('web',), [0, 0])
    """
    all_parts = list(parts)
    filled = [part for part in all_parts if len(part)]
    failures = tuple(failure for part in all_parts for failure in part.failures)
    # Without samples there are no resources to compare, only failures.
    if not filled:
        return no_rows(failures)
    resources = filled[0].resources
    for part in filled:
        if part.resources != resources:
            raise ValueError(
                f"one part has costs of {', '.join(resources)}, another of "
                f"{', '.join(part.resources)}; analyze them one by one, or name those that all "
                "have with --resource"
            )
    # Each part numbers its own sources, so they get new numbers in the order of the parts.
    names = dict.fromkeys(name for part in filled for name in part.sources)
    numbers = {name: number for number, name in enumerate(names)}
    renumbered = [
        np.array([numbers[name] for name in part.sources], np.int64)[part.source_of]
        for part in filled
    ]
    # If only some parts have keys, row numbers stand in for the others'.
    keys: tuple[str, ...] = ()
    if any(part.keys for part in filled):
        keys = tuple(part.key(row) for part in filled for row in range(len(part)))
    return Rows(
        resources=resources, costs=np.concatenate([part.costs for part in filled]),
        source_of=np.concatenate(renumbered), sources=tuple(numbers), keys=keys, failures=failures,
    )  # fmt: skip


def select_rows(rows: Rows, numbers: Int64) -> Rows:
    """Return the rows of those numbers, in that order; failures stay."""
    keys = tuple(rows.keys[k] for k in numbers.tolist()) if rows.keys else ()
    return replace(rows, costs=rows.costs[numbers], source_of=rows.source_of[numbers], keys=keys)


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
    }
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    return write_arrays(
        path, STAMP, {"costs": rows.costs, "source_of": rows.source_of, "about": text}
    )


def load_rows(path: Path) -> Rows | None:
    """Return the rows that `save_rows` wrote, None if the file is missing or damaged."""
    return read_or_remove(path, STAMP, _unpacked, "measured samples")


def _unpacked(arrays: Arrays) -> Rows | None:
    if "about" not in arrays:
        return None
    about = json.loads(arrays.pop("about").tobytes())
    return Rows(
        resources=tuple(about["resources"]),
        sources=tuple(about["sources"]),
        keys=tuple(about["keys"]),
        failures=tuple(Failure(**failure) for failure in about["failures"]),
        **arrays,
    )


DEFAULT_RESOURCES = ("tiles", "tokens", "label_tokens")
OTHER_COLUMNS = ("key", "source")
Columns = Mapping[str, Column]
Fits = npt.NDArray[np.bool_]


def read_table(path: Path, resources: tuple[str, ...] = ()) -> Rows:
    """Return a table's rows; raises ValueError for a file or columns that cannot be used.

    resources: the columns that hold costs, by default those of DEFAULT_RESOURCES that exist.
    """
    table = open_table(path)
    cost_names = _resources(table, resources)
    label_names = (name for name in OTHER_COLUMNS if name in table.names)
    columns = table.columns([*cost_names, *label_names])
    names = columns.get("key")
    fitting = {name: _fitting(path, name, columns[name]) for name in cost_names}
    lines = [Failure(f"line {n}", path.name, "unreadable", why) for n, why in table.bad_lines]
    failures = (*lines, *_unusable_rows(path, columns, fitting, names))
    usable = np.flatnonzero(np.all(list(fitting.values()), axis=0))
    if not len(usable):
        return no_rows(failures)
    return Rows(
        resources=cost_names,
        costs=np.stack([columns[name][usable].astype(np.int64) for name in cost_names], axis=1),
        **_sources(table, columns.get("source"), usable),
        keys=() if names is None else tuple(map(str, names[usable].tolist())),
        failures=failures,
    )


def _resources(table: Table, resources: tuple[str, ...]) -> tuple[str, ...]:
    path = table.path
    if {"stamp", "place_ends"} <= {*table.names}:
        shard = path.name.removesuffix(".index.npz")
        raise ValueError(
            f"{path} is the index of {shard}: it has positions of samples, no costs; analyze "
            f"{shard} itself"
        )
    if table.bad_lines and not table.names:
        number, why = table.bad_lines[0]
        raise ValueError(
            f"{path}: no line is a JSON object; line {number} is {why}: write one for each "
            'sample, such as {"tokens": 5}'
        )
    names = resources or tuple(name for name in DEFAULT_RESOURCES if name in table.names)
    if not names:
        raise ValueError(
            f"{path} has none of the columns {', '.join(DEFAULT_RESOURCES)}; it has {table.has}: "
            "say which are costs with --resource NAME"
        )
    return names


def _unusable_rows(
    path: Path, columns: Columns, fitting: Mapping[str, Fits], names: npt.NDArray[Any] | None
) -> Iterator[Failure]:
    """Yield a failure for each row in which a resource has no cost that can be planned."""
    for row in np.flatnonzero(~np.all(list(fitting.values()), axis=0)).tolist():
        key = f"row {row}" if names is None else str(names[row])
        unusable = [name for name, fits in fitting.items() if not fits[row]]
        reasons = [bad_cost(name, columns[name][row]) for name in unusable]
        yield Failure(key, path.name, "unreadable", "; ".join(reasons))


def _fitting(path: Path, name: str, column: npt.NDArray[Any]) -> Fits:
    """Return which rows of a column are costs.

    A missing value makes floats of a whole column, so whole numbers among floats are costs here.
    """
    if column.dtype.kind not in "iuf":
        raise ValueError(
            f"{path}: column {name!r} holds {column.dtype}; costs must be whole numbers"
        )
    fits: Fits = (column >= 0) & (column <= MAX_COST)
    return fits & (column == np.floor(column)) if column.dtype.kind == "f" else fits


def _sources(table: Table, column: Column | None, usable: npt.NDArray[np.intp]) -> dict[str, Any]:
    """Return the fields `source_of` and `sources` of rows."""
    if column is None:
        return {"source_of": np.zeros(len(usable), np.int64), "sources": (table.path.stem,)}
    values, number = np.unique(column[usable], return_inverse=True)
    # An index that analyze wrote has numbers, and their names in an array of its own.
    known: Any = table.column("sources") if "sources" in table.names else ()
    names = list(map(str, values.tolist()))
    if values.dtype.kind in "iu":
        names = [str(known[n]) if 0 <= n < len(known) else f"source {n}" for n in values.tolist()]
    return {"source_of": number.astype(np.int64).reshape(-1), "sources": tuple(names)}
