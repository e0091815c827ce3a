"""Tables of costs: npz, JSONL or parquet, a column a resource, a row a sample.

Columns that are no resources: `key` (the sample's name), `source` (a name, or a number in the npz
array `sources`), `nbytes` (decoded bytes). A value that is missing, NaN, negative or no whole
number makes its row unreadable; the others stay.
"""

import importlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .rows import Failure, Rows, nothing

SUFFIXES = (".npz", ".jsonl", ".parquet")
USUAL = ("tiles", "tokens", "label_tokens")
ABOUT = ("key", "source", "nbytes")
Columns = Mapping[str, npt.NDArray[Any]]
MOST = 2**53


def read_table(path: Path, wanted: tuple[str, ...] = ()) -> Rows:
    """Return a table's rows; raises ValueError for a file or columns that cannot be used.

    wanted: the columns that are resources; by default those of `USUAL` that are there.
    """
    columns, bad = _READERS[path.suffix](path)
    return _rows(path, columns, _resources(path, columns, wanted), bad)


def _resources(path: Path, columns: Columns, wanted: tuple[str, ...]) -> tuple[str, ...]:
    has = ", ".join(sorted(columns)) or "none"
    if missing := [name for name in wanted if name not in columns]:
        raise ValueError(f"{path} has no column {missing[0]!r}; it has {has}")
    found = wanted or tuple(name for name in USUAL if name in columns)
    if not found:
        raise ValueError(
            f"{path} has none of the columns {', '.join(USUAL)}; it has {has}: "
            "say which are costs with --resource NAME"
        )
    return found


def _rows(path: Path, columns: Columns, resources: tuple[str, ...], bad: list[Failure]) -> Rows:
    count = len(columns[resources[0]])
    for name in resources:
        if columns[name].shape != (count,):
            raise ValueError(
                f"{path}: column {name!r} has shape {columns[name].shape}, "
                f"{resources[0]!r} has {(count,)}; give one number a row"
            )
    about = {n: columns[n] for n in ABOUT if n in columns and columns[n].shape == (count,)}
    numbers = [_number(path, name, columns[name]) for name in resources]
    wrong = np.any([reason != 0 for _, reason in numbers], axis=0)
    names = about.get("key")

    def name_of(row: int) -> str:
        return str(names[row]) if names is not None else f"row {row}"

    failures = [*bad]
    for row in np.flatnonzero(wrong).tolist():
        why = [f"{n} is {_WRONG[r[row]]}" for n, (_, r) in zip(resources, numbers, strict=True)
               if r[row]]  # fmt: skip
        failures.append(Failure(name_of(row), path.name, "unreadable", ", ".join(why)))
    fine = np.flatnonzero(~wrong)
    if not len(fine):
        return nothing(failures)
    source_of, sources = _sources(path, columns, about, fine)
    nbytes = about["nbytes"] if "nbytes" in about else np.full(count, -1)
    keys = tuple(map(str, names[fine].tolist())) if names is not None else ()
    costs = np.stack([values[fine] for values, _ in numbers], axis=1)
    known = np.where(np.isnan(nbytes.astype(float)), -1, nbytes)[fine].astype(np.int64)
    return Rows(resources, costs, known, source_of, sources, keys, tuple(failures))


_WRONG = ("", "missing or NaN", "negative", "no whole number", "too large")


def _number(
    path: Path, name: str, column: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int8]]:
    """The column as int64, and a reason (number in _WRONG) for every row."""
    reason = np.zeros(len(column), np.int8)
    if column.dtype.kind in "iu":
        reason[column < 0] = 2
        reason[column > MOST] = 4
        return column.astype(np.int64), reason
    if column.dtype.kind != "f":
        raise ValueError(f"{path}: column {name!r} holds {column.dtype}, needed are whole numbers")
    whole = np.nan_to_num(column, nan=0.0, posinf=0.0, neginf=0.0)
    reason[whole != np.floor(whole)] = 3
    reason[whole > MOST] = 4
    reason[whole < 0] = 2
    reason[~np.isfinite(column)] = 1
    return np.where(reason == 0, whole, 0).astype(np.int64), reason


def _sources(
    path: Path, columns: Columns, about: Columns, fine: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    if "source" not in about:
        return np.zeros(len(fine), np.int64), (path.stem,)
    values, number = np.unique(about["source"][fine].astype(str), return_inverse=True)
    names = values.tolist()
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
                    f"{path} says where the samples of {shard} stand, not what they cost; "
                    f"analyze {shard} itself"
                )
            return dict(arrays), []
    except (zipfile.BadZipFile, EOFError, KeyError) as error:
        raise ValueError(f"{path} is no npz file ({error}); write it again") from None
    except ValueError as error:
        if "pickle" in str(error).lower():
            raise ValueError(
                f"{path} is no npz file of plain arrays ({error}); save numbers and text only"
            ) from None
        raise


def _jsonl(path: Path) -> tuple[Columns, list[Failure]]:
    """Columns of all names that stand in any line; a line without one has NaN there."""
    rows, bad = list[dict[str, Any]](), list[Failure]()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                row = f"no JSON ({error})"
            if isinstance(row, dict):
                rows.append(row)
            else:
                reason = row if isinstance(row, str) else "no JSON object"
                bad.append(Failure(f"line {number}", path.name, "unreadable", reason))
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _column([row.get(name) for row in rows]) for name in names}, bad


def _column(values: list[Any]) -> npt.NDArray[Any]:
    if all(type(value) is int and abs(value) < MOST for value in values):
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
        raise ValueError(f"{path} is no parquet file ({error})") from None
    return {
        name: table.column(name).to_numpy()
        if not str(table.schema.field(name).type).endswith("string")
        else np.array([str(value) for value in table.column(name).to_pylist()])
        for name in table.column_names
    }, []


_READERS = {".npz": _npz, ".jsonl": _jsonl, ".parquet": _parquet}
