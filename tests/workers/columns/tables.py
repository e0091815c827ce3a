"""Tables that the tests make: those of a tar's samples, and small ones."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.workers.images.decode import is_image

FIELDS = ("conversations", "document", "n_images", "source")
END = b"\xff\xff\xff\xff\0\0\0\0"


def table_of(tar: Any, texts: bool = False) -> pa.Table:
    """Return the samples of a TarDataset as a table; texts: conversations as JSON."""
    rows = []
    for index in range(len(tar)):
        raw = tar.raw(index)
        record = {name: raw["json"].get(name) for name in FIELDS}
        if texts and record["conversations"] is not None:
            record["conversations"] = json.dumps(record["conversations"])
        images = [{"bytes": raw[name], "path": name} for name in raw if is_image(name)]
        rows.append({"__key__": raw["__key__"], **record, "images": images})
    return pa.Table.from_pylist(rows)


def write(path: Path, columns: Any, rows: int = 2) -> Path:
    """Write a parquet file of a table, or of columns; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, row_group_size=rows)
    return path


def save(folder: Path, columns: Any, rows: int = 2, files: int = 1) -> Path:
    """Write a table as `save_to_disk` does, with so many rows a batch; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    names = [f"data-{number:05}-of-{files:05}.arrow" for number in range(files)]
    share = -(-len(table) // files)
    for number, name in enumerate(names):
        part = table.slice(number * share, share)
        with (
            pa.OSFile(str(folder / name), "wb") as file,
            pa.ipc.new_stream(file, part.schema) as to,
        ):
            to.write_table(part, max_chunksize=rows)
    state = {
        "_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": None,
        "_output_all_columns": False, "_format_type": None, "_format_kwargs": {},
        "_format_columns": None,
    }  # fmt: skip
    (folder / "state.json").write_text(json.dumps(state))
    return folder
