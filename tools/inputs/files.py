"""Reads files that users give: texts, and tables of costs, a column at a time.

Files come from anywhere, and may be wrong in any way: what cannot be read is a ValueError of one
line that names the file, the column and what to do. A table is npz, JSONL or parquet, with a row
per sample. Nothing is unpickled, only columns that are asked for are read, and none takes more
memory than its file can hold.
"""

import importlib
import json
import math
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ...balancer.planning.kernels.arrays import Int64
from ...workers.sources.costs import checked_column
from ...workers.tar.members import decode_member

# Of a file of JSON, to look at its first row.
FIRST_BYTES = 1 << 20
T = TypeVar("T")
Column = npt.NDArray[Any]
# What the compression of zip files can make of a byte, and a little more.
INFLATED = 1100
# The largest integer up to which a float holds every integer.
LARGEST_WHOLE_FLOAT = 2**53
# Rows of a parquet file, which may have a billion of them in a kilobyte.
MOST_ROWS = 2**28
# Names and characters of others that an error quotes.
QUOTED_NAMES, QUOTED = 20, 300


def parse_text(path: Path, parse: Callable[[str], T]) -> T:
    """Return what `parse` makes of a text file; OSError if there is none.

    Raises ValueError, with the path, whatever is wrong with the text.
    """
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except OSError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except Exception as error:  # of json or csv: too deep, or too long
        raise ValueError(f"{path}: {_reason(error)}") from None


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of a file by name, and the lines of it that are no rows, with the reason."""

    path: Path
    names: tuple[str, ...]
    read: Callable[[str], Column]
    bad_lines: tuple[tuple[int, str], ...] = ()

    @property
    def has(self) -> str:
        """Return the names of the columns, as errors list them."""
        more = f" and {len(self.names) - QUOTED_NAMES} more" * (len(self.names) > QUOTED_NAMES)
        return (", ".join(sorted(self.names)[:QUOTED_NAMES]) or "no columns") + more

    def column(self, name: str) -> Column:
        """Return a column (n,); ValueError if there is none, or none that can be read."""
        if name not in self.names:
            raise ValueError(f"{self.path} has no column {name!r}; it has {self.has}")
        try:
            column = self.read(name)
        except Exception as error:  # of zipfile, numpy or pyarrow, whatever a file makes of them
            raise ValueError(
                f"{self.path}: column {name!r} cannot be read ({_reason(error)}); write it again, "
                "as a plain array of numbers or text"
            ) from None
        if column.ndim != 1:
            raise ValueError(
                f"{self.path}: column {name!r} has shape {column.shape}; give one number per row"
            )
        return column

    def columns(self, names: Sequence[str]) -> dict[str, Column]:
        """Return columns of the same length; ValueError if one is of another."""
        columns = {name: self.column(name) for name in names}
        count = len(columns[names[0]])
        for name, column in columns.items():
            if len(column) != count:
                raise ValueError(
                    f"{self.path}: column {name!r} has {len(column)} rows, {names[0]!r} has "
                    f"{count}; give one value per row"
                )
        return columns

    def costs(self, names: Sequence[str]) -> Int64:
        """Return columns of costs (n, names); ValueError for other values, or no row at all."""
        columns = self.columns(names)
        try:
            costs = np.stack([checked_column(name, columns[name]) for name in names], axis=1)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        if not len(costs):
            raise ValueError(f"{self.path}: {', '.join(names)} have no rows; give one per sample")
        return costs


def open_table(path: Path) -> Table:
    """Return a file's table; ValueError if it is none, OSError if it cannot be read."""
    if not is_table(path.name):
        raise ValueError(f"{path} is no table of costs; give one of {', '.join(SUFFIXES)}")
    with path.open("rb"):  # a file that is missing or locked is no table that is wrong
        pass
    try:
        return _READERS[path.suffix.lower()](path)
    except ImportError:
        raise ValueError(
            f"{path}: reading parquet needs pyarrow; pip install 'counterpoise[parquet]'"
        ) from None
    except Exception as error:  # see Table.column
        raise ValueError(f"{path} cannot be read ({_reason(error)}); write it again") from None


def _reason(error: Exception) -> str:
    """Return an error of others in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.{QUOTED}}"


def _npz(path: Path) -> Table:
    archive, most = zipfile.ZipFile(path), INFLATED * path.stat().st_size

    def read(name: str) -> Column:
        info = archive.getinfo(f"{name}.npy")
        if info.file_size > most:
            raise ValueError(f"it says that it has {info.file_size} bytes: more than fit the file")
        array: Column = decode_member("npy", archive.read(info))
        return array

    members = [name for name in archive.namelist() if name.endswith(".npy")]
    return Table(path, tuple(name.removesuffix(".npy") for name in members), read)


def _jsonl(path: Path) -> Table:
    """Return a column for every name in any line; a line without that name has NaN."""
    rows, bad = list[dict[str, Any]](), list[tuple[int, str]]()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                bad.append((number, f"not JSON ({error})"))
                continue
            # One bad line is a failure with its number; the other lines are still of use.
            if isinstance(row, dict):
                rows.append(row)
            else:
                bad.append((number, "not a JSON object"))
    names = dict.fromkeys(name for row in rows for name in row)
    read = lambda name: _values([row.get(name) for row in rows])  # noqa: E731
    return Table(path, tuple(names), read, tuple(bad))


def _values(values: list[Any]) -> Column:
    if all(type(value) is int and abs(value) < LARGEST_WHOLE_FLOAT for value in values):
        return np.array(values, np.int64)
    if all(isinstance(value, str) for value in values):
        return np.array(values, str)
    return np.array([_float(value) for value in values])


def _float(value: Any) -> float:
    """Return a number as a float, one that no float can be as infinity, and NaN for the rest."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _parquet(path: Path) -> Table:
    file = importlib.import_module("pyarrow.parquet").ParquetFile(path)
    if file.metadata.num_rows > MOST_ROWS:
        raise ValueError(f"it has {file.metadata.num_rows} rows, {MOST_ROWS} are read at most")

    def read(name: str) -> Column:
        column = file.read(columns=[name]).column(name)
        if str(column.type).endswith("string"):
            return np.array([str(value) for value in column.to_pylist()])
        array: Column = column.to_numpy()
        return array

    return Table(path, tuple(file.schema_arrow.names), read)


def first_row(path: Path) -> dict[str, Any] | None:
    """Return the first row of JSONL, parquet, or a JSON array; empty where that is not clear.

    None where it is none of them. A file that cannot be read fails where all of it is read.
    """
    try:
        if path.suffix.lower() == ".parquet":
            file = importlib.import_module("pyarrow.parquet").ParquetFile(path)
            return dict(next(file.iter_batches(batch_size=1)).to_pylist()[0])
        with path.open("rb") as lines:
            text = lines.read(FIRST_BYTES).decode("utf-8-sig", "ignore").lstrip()
        if text[:1] not in ("[", "{"):
            return None if text else {}
        row, _ = json.JSONDecoder().raw_decode(text.removeprefix("[").lstrip())
        return row if isinstance(row, dict) else {}
    except (StopIteration, IndexError, ImportError, OSError, ValueError, RecursionError):
        return {}


_READERS = {".npz": _npz, ".jsonl": _jsonl, ".parquet": _parquet}
SUFFIXES = tuple(_READERS)


def is_table(name: str) -> bool:
    """Return whether a file of that name can be a table.

    >>> is_table("costs.NPZ"), is_table("shard-0.tar")
    (True, False)
    """
    return name.lower().endswith(SUFFIXES)
