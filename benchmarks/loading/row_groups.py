"""`make bench NAME=row_groups`: what a sample takes from parquet, by the size of row groups."""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

import counterpoise as cp
from counterpoise.tools.console.reporting import emit
from counterpoise.workers.images.decode import is_image

SIZES = (1, 8, 16, 64, 256, 1024)


@click.command("row_groups", epilog="Example: make bench NAME=row_groups ARGS='--data DIR --json'")
@click.option("--data", required=True, help="Tar shards that are written as parquet.")
@click.option("--repeat", default=6, show_default=True, help="Times that all of them are written.")
@click.option("--samples", default=400, show_default=True, help="Samples that are read.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(data: str, repeat: int, samples: int, as_json: bool) -> None:
    """Read raw samples in a shuffled order and in the files'; CPU time and memory of one process.

    Files are in the page cache: a disk adds the bytes of a row group to each miss.
    """
    report = dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory() as folder:
        tar = cp.TarDataset(data, cache=folder)
        table = pa.concat_tables([_table(tar)] * repeat)
        report["tar"] = _measured(lambda: tar, samples)
        for size in SIZES:
            path = Path(folder) / f"{size}.parquet"
            pq.write_table(table, path, row_group_size=size)
            found = _measured(partial(cp.ParquetDataset, path), samples)
            report[f"{size} rows"] = {**found, "MB of a file": path.stat().st_size / 1e6}
            path.unlink()
    shown = Table("row group", "shuffled, ms", "in order, ms", "opened, ms", "file, MB")
    for name, row in report.items():
        shown.add_row(name, *(f"{value:.2f}" for value in row.values()))
    emit(report, as_json, shown)


def _table(tar: Any) -> pa.Table:
    rows = []
    for index in range(len(tar)):
        raw = tar.raw(index)
        images = [{"bytes": raw[name], "path": name} for name in raw if is_image(name)]
        rows.append({"conversations": raw["json"].get("conversations"), "images": images})
    return pa.Table.from_pylist(rows)


def _measured(make: Callable[[], Any], samples: int) -> dict[str, float]:
    begin = time.process_time()
    dataset = make()
    opened = time.process_time() - begin
    shuffled = np.random.default_rng(0).permutation(len(dataset))[:samples]
    taken = []
    for order in (shuffled, np.arange(min(samples, len(dataset)))):
        begin = time.process_time()
        for index in order.tolist():
            dataset.raw(index)
        taken.append((time.process_time() - begin) / len(order) * 1e3)
    return {"shuffled": taken[0], "in order": taken[1], "opened": opened * 1e3}
