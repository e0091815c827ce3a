"""Reads the folders that datasets.Dataset.save_to_disk makes, and lists of their rows."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ..sources.file_patterns import resolved
from .row_groups import describe_fault

STATE, SPLITS = "state.json", "dataset_dict.json"
END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream of Arrow
# A job's description is at most 4 MiB long; a run of rows is two numbers, whatever it stands for.
MOST_ROWS, LONGEST_RUN = 300_000, 1 << 28
# What a table in memory may have gone through and still have the rows of its file: columns that are
# left out, or have another Feature, are compared by their types.
SAME_ROWS = {"slice", "select", "drop", "remove_column", "cast", "replace_schema_metadata"}


def arrow_files(folder: Path, root: str | Path | None) -> tuple[Path, ...]:
    """Return the Arrow files of a folder, in order; all of them below the root.

    Raises FileNotFoundError for no folder, ValueError for one that save_to_disk has not made.
    """
    folder = resolved(folder, root)
    if not folder.is_dir():
        raise FileNotFoundError(f"no such folder: {folder}; check the path")
    if (folder / SPLITS).is_file():
        splits = ", ".join(sorted(path.parent.name for path in folder.glob(f"*/{STATE}")))
        raise ValueError(f"{folder} has splits ({splits}): give the folder of one of them")
    if not (folder / STATE).is_file():
        raise ValueError(
            f"{folder} has no {STATE}: needed is a folder that Dataset.save_to_disk made"
        )
    try:
        state = json.loads((folder / STATE).read_text())
        # The file may say anything.
        names = [file["filename"] for file in state["_data_files"]]
        if not names or any(name in ("", "..") or Path(name).name != name for name in names):
            raise ValueError(f"it names {names!r:.120}, needed are files in the folder itself")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{folder / STATE} is damaged: {error!r:.200}") from None
    return tuple(resolved(folder / name, root) for name in names)


def map_table(path: Path) -> Any:
    """Return the table of an Arrow file, mapped into memory; ValueError where it is cut off."""
    pa = importlib.import_module("pyarrow")
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - len(END)))
        if file.read() != END:
            raise ValueError(f"{path} is no stream of Arrow, or is cut off; write it again")
    try:
        alone = pa.ipc.IpcReadOptions(use_threads=False)  # threads end where a process forks
        return pa.ipc.open_stream(pa.memory_map(str(path)), options=alone).read_all()
    except (OSError, ValueError, NotImplementedError) as error:
        raise describe_fault(error, path, f"{path} is damaged") from error


def rows_on_disk(dataset: Any) -> tuple[str, tuple[Path, ...], Int64] | None:
    """Return the folder and files that a datasets.Dataset is from, and its table's rows there.

    The folder is "" where save_to_disk has not made it. None for what is in memory, or has other
    columns than its files, or a row twice.
    """
    # Tables beside each other have columns of several files.
    stacked = getattr(dataset.data, "blocks", [[dataset.data]])
    blocks: list[Any] = [tables[0] if len(tables) == 1 else None for tables in stacked]
    paths = [Path(getattr(block, "path", "")) for block in blocks]
    if (
        not blocks
        or not all(path.name for path in paths)
        or not all(name in SAME_ROWS for block in blocks for name, _, _ in block.replays or ())
    ):
        return None
    folder, files = paths[0].parent, tuple(dict.fromkeys(paths))
    of_folder = arrow_files(folder, None) if (folder / STATE).is_file() else ()
    is_whole = {*files} <= {*of_folder}
    files = of_folder if is_whole else files
    try:
        tables = [map_table(path) for path in files]
    except ValueError:
        return None
    # Rows of a file are the table's only where all columns are as the files have them.
    schemas = [dict(zip(table.schema.names, table.schema.types, strict=True)) for table in tables]
    types = dict(zip(dataset.data.schema.names, dataset.data.schema.types, strict=True))
    if any(schema != schemas[0] for schema in schemas) or not types.items() <= schemas[0].items():
        return None
    begins = dict(zip(files, np.cumsum([0, *map(len, tables)]), strict=False))
    parts = [
        begins[p] + _find_begin(b) + np.arange(len(b)) for p, b in zip(paths, blocks, strict=True)
    ]
    rows: Int64 = np.concatenate(parts)
    if len(np.unique(rows)) < len(rows):
        return None
    return str(folder) if is_whole else "", files, rows


def _find_begin(block: Any) -> int:
    """Return the row of its file at which a table begins."""
    slices = [arguments for name, *arguments in block.replays or () if name == "slice"]
    return sum(int(args[0] if args else keywords.get("offset", 0)) for args, keywords in slices)


def pack_rows(rows: Int64) -> list[int]:
    """Return rows for a job's description, as [begin, -end] where they follow each other.

    Raises ValueError for more than it has room for.

    >>> pack_rows(np.array([3, 1, 2])), pack_rows(np.arange(5, 900)), unpack_rows([5, -900]).size
    ([3, 1, 2], [5, -900], 895)
    """
    if len(rows) > 2 and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
        return [int(rows[0]), -int(rows[-1]) - 1]
    if len(rows) > MOST_ROWS:
        raise ValueError(
            f"a view of {len(rows)} rows in an order of its own is too long to be told to workers "
            f"elsewhere (at most {MOST_ROWS}): save it with save_to_disk, and give that folder"
        )
    numbers: list[int] = rows.tolist()
    return numbers


def unpack_rows(rows: Any) -> Int64 | None:
    """Return the rows that a list of integers names; ValueError where it names none."""
    if rows is None:
        return None
    numbers = np.asarray(rows)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ValueError(f"rows are the numbers of a table's rows, got {rows!r:.80}")
    if len(numbers) == 2 and 0 <= numbers[0] < -numbers[1] <= LONGEST_RUN:
        return np.arange(numbers[0], -numbers[1], dtype=np.int64)
    return numbers.astype(np.int64)
