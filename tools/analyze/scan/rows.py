"""The result of a scan: rows of costs, and the samples that cannot be used with the reason.

Each part of a data set yields `Rows`. Merging all parts in order gives the same result however the
work was split and wherever each part was scanned.

They are read from a table, too: npz, JSONL or parquet, with a column per resource and a row per
sample. Three columns are not resources: `key` (the sample's name), `source` (a name, or an index
into the npz array `sources`) and `nbytes` (decoded bytes). A value that is missing, NaN, negative
or not a whole number makes its row unreadable; the other rows stay.
"""

import importlib
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ....balancer.planning.kernels.arrays import Int64
from ....workers.sources.costs import MAX_COST, bad_cost
from ....workers.tar.cache_files import Arrays, read_or_remove, write_arrays

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
        resources=resources,
        costs=np.concatenate([part.costs for part in filled]),
        nbytes=np.concatenate([part.nbytes for part in filled]),
        source_of=np.concatenate(renumbered),
        sources=tuple(numbers),
        keys=keys,
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


SUFFIXES = (".npz", ".jsonl", ".parquet")
DEFAULT_RESOURCES = ("tiles", "tokens", "label_tokens")
OTHER_COLUMNS = ("key", "source", "nbytes")
Columns = Mapping[str, npt.NDArray[Any]]
Fits = npt.NDArray[np.bool_]
# The largest integer up to which a float holds every integer.
LARGEST_WHOLE_FLOAT = 2**53


def read_table(path: Path, resources: tuple[str, ...] = ()) -> Rows:
    """Return a table's rows; raises ValueError for a file or columns that cannot be used.

    resources: the columns that hold costs, by default those of DEFAULT_RESOURCES that exist.
    """
    columns, unreadable = _READERS[path.suffix](path)
    return _rows(path, columns, _resources(path, columns, resources), unreadable)


def _resources(path: Path, columns: Columns, wanted: tuple[str, ...]) -> tuple[str, ...]:
    has = ", ".join(sorted(columns)) or "none"
    if missing := [name for name in wanted if name not in columns]:
        raise ValueError(f"{path} has no column {missing[0]!r}; it has {has}")
    found = wanted or tuple(name for name in DEFAULT_RESOURCES if name in columns)
    if not found:
        raise ValueError(
            f"{path} has none of the columns {', '.join(DEFAULT_RESOURCES)}; it has {has}: "
            "say which are costs with --resource NAME"
        )
    return found


def _rows(
    path: Path, columns: Columns, resources: tuple[str, ...], unreadable: list[Failure]
) -> Rows:
    count = len(columns[resources[0]])
    _check_shapes(path, columns, resources)
    others = {n: columns[n] for n in OTHER_COLUMNS if n in columns and columns[n].shape == (count,)}
    names = others.get("key")
    fitting = {name: _fitting(path, name, columns[name]) for name in resources}
    failures = [*unreadable, *_unusable_rows(path, columns, fitting, names)]
    usable = np.flatnonzero(np.all(list(fitting.values()), axis=0))
    if not len(usable):
        return no_rows(failures)
    source_of, sources = _sources(path, columns, others, usable)
    nbytes = others["nbytes"] if "nbytes" in others else np.full(count, -1)
    keys = tuple(map(str, names[usable].tolist())) if names is not None else ()
    costs = np.stack([columns[name][usable].astype(np.int64) for name in resources], axis=1)
    known = np.where(np.isnan(nbytes.astype(float)), -1, nbytes)[usable].astype(np.int64)
    return Rows(resources, costs, known, source_of, sources, keys, tuple(failures))


def _check_shapes(path: Path, columns: Columns, resources: tuple[str, ...]) -> None:
    """Raise ValueError unless all resources have one number per row."""
    count = len(columns[resources[0]])
    for name in resources:
        if columns[name].shape != (count,):
            raise ValueError(
                f"{path}: column {name!r} has shape {columns[name].shape}, "
                f"{resources[0]!r} has {(count,)}; give one number per row"
            )


def _unusable_rows(
    path: Path, columns: Columns, fitting: Mapping[str, Fits], names: npt.NDArray[Any] | None
) -> Iterator[Failure]:
    """Yield a failure for each row in which a resource has no cost that can be planned."""
    for row in np.flatnonzero(~np.all(list(fitting.values()), axis=0)).tolist():
        key = f"row {row}" if names is None else str(names[row])
        unusable = [name for name, fits in fitting.items() if not fits[row]]
        found = [bad_cost(name, columns[name][row]) for name in unusable]
        yield Failure(key, path.name, "unreadable", "; ".join(found))


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


def _sources(
    path: Path, columns: Columns, others: Columns, usable: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    if "source" not in others:
        return np.zeros(len(usable), np.int64), (path.stem,)
    values, number = np.unique(others["source"][usable].astype(str), return_inverse=True)
    names = values.tolist()
    # An index that analyze wrote has numbers, and their names in an array of its own.
    if "sources" in columns and all(name.isdigit() for name in names):
        known = columns["sources"]
        names = [str(known[int(n)]) if int(n) < len(known) else n for n in names]
    elif all(name.isdigit() for name in names):
        names = [f"source {name}" for name in names]
    return number.astype(np.int64).reshape(-1), tuple(names)


def _npz(path: Path) -> tuple[Columns, list[Failure]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if "stamp" in arrays and "member_ends" in arrays:
                shard = path.name.removesuffix(".index.npz")
                raise ValueError(
                    f"{path} is the index of {shard}: it has positions of samples, no costs; "
                    f"analyze {shard} itself"
                )
            return dict(arrays), []
    except (zipfile.BadZipFile, EOFError, KeyError) as error:
        raise ValueError(f"{path} is not an npz file ({error}); write it again") from None
    except ValueError as error:
        if "pickle" in str(error).lower():
            raise ValueError(
                f"{path} is not an npz file of plain arrays ({error}); save numbers and text only"
            ) from None
        raise


def _jsonl(path: Path) -> tuple[Columns, list[Failure]]:
    """Return a column for every name in any line; a line without that name has NaN."""
    rows, bad = list[dict[str, Any]](), list[Failure]()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                row = f"not JSON ({error})"
            # One bad line is a failure with its number; the other lines are still of use.
            if isinstance(row, dict):
                rows.append(row)
            else:
                reason = row if isinstance(row, str) else "not a JSON object"
                bad.append(Failure(f"line {number}", path.name, "unreadable", reason))
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _column([row.get(name) for row in rows]) for name in names}, bad


def _column(values: list[Any]) -> npt.NDArray[Any]:
    if all(type(value) is int and abs(value) < LARGEST_WHOLE_FLOAT for value in values):
        return np.array(values, np.int64)
    if all(isinstance(value, str) for value in values):
        return np.array(values, str)
    numeric = (isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    pairs = zip(values, numeric, strict=True)
    return np.array([float(value) if is_number else float("nan") for value, is_number in pairs])


def _parquet(path: Path) -> tuple[Columns, list[Failure]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError(
            f"{path}: reading parquet needs pyarrow; pip install 'counterpoise[parquet]'"
        ) from None
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a parquet file ({error}); write it again") from None
    return {
        name: table.column(name).to_numpy()
        if not str(table.schema.field(name).type).endswith("string")
        else np.array([str(value) for value in table.column(name).to_pylist()])
        for name in table.column_names
    }, []


_READERS = {".npz": _npz, ".jsonl": _jsonl, ".parquet": _parquet}
