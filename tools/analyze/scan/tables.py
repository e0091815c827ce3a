"""Reads tables of costs: npz, JSONL or parquet, with a column per resource and a row per sample.

Three columns are not resources: `key` (the sample's name), `source` (a name, or an index into the
npz array `sources`) and `nbytes` (decoded bytes). A value that is missing, NaN, negative or not a
whole number makes its row unreadable; the other rows stay.
"""

import importlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ....workers.sources.costs import MAX_COST, bad_cost
from .rows import Failure, Rows, no_rows

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
    if any(isinstance(value, str) for value in values):
        texts = all(isinstance(value, str) for value in values)
        if texts:
            return np.array(values, str)
    return np.array([_float(value) for value in values])


def _float(value: Any) -> float:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if numeric else float("nan")


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
