"""Runs a scan: the tasks of a data set, and their rows merged.

The rows of each finished task are saved in a file of their own, whose name is a hash of all that
they depend on. A scan that was interrupted reads those files and scans only the rest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress as Bars

from ....balancer.planning.kernels.arrays import Int64
from ....workers.sources.data_identity import KnownData
from ....workers.sources.fingerprint import digest, library_versions
from ....workers.sources.plain import unwrap_dataset
from ...runners import Runner
from .measure import count_samples, measure_task
from .rows import Rows, load_rows, merge, save_rows, select_resources, select_rows
from .sources import (
    TASK_ROWS,
    ScanOptions,
    ScanTask,
    find_tasks,
    make_transform,
    open_dataset,
    with_found_costs,
)

Progress = Callable[[int, int], object]
# Changes whenever the saved rows change their form.
FORMAT = 3
# Looking up saved rows is fast; the progress bar need not follow every one.
REPORT_EVERY = 64


def scan_sources(
    sources: Sequence[str], options: ScanOptions, parts: Path, run: Runner, progress: Bars,
    samples: int = 0,
) -> tuple[Rows, int, str]:  # fmt: skip
    """Return `scan_all` of sources, with bars, and in words what costs were found."""
    listing = progress.add_task("list", total=None, live="")
    tasks = find_tasks(sources)
    progress.update(listing, total=1, completed=1)
    options = with_found_costs(tasks, options)
    scanning = progress.add_task("scan", total=None, live="")

    def show(finished: int, pieces: int) -> None:
        progress.update(scanning, completed=finished, total=pieces)

    rows, total = scan_all(tasks, options, parts, run, samples, show)
    return rows, total, "" if options.found_costs is None else options.found_costs.describe()


def scan_all(
    tasks: Sequence[ScanTask], options: ScanOptions, parts: Path, run: Runner, sample: int = 0,
    progress: Progress = lambda _finished, _tasks: None,
) -> tuple[Rows, int]:  # fmt: skip
    """Return the merged rows, and the number of samples in the whole data set.

    parts: the folder of saved rows. sample: measure that many samples, drawn at random (0: all).
    progress(finished tasks, tasks) is called as the scan goes on.
    """
    tables = [measure_task(task, options) for task in tasks if task.kind == "table"]
    sample_tasks = [task for task in tasks if task.kind != "table"]
    # A table is read as a whole, so with tables the sample is drawn from the merged rows.
    if sample and not tables:
        pieces, total = _draw_pieces(sample_tasks, options, run, sample)
    else:
        pieces, total = whole_pieces(sample_tasks, options), 0  # counted below
    scanned = _scan_pieces(pieces, options, parts, run, progress)
    rows = merge(select_resources(part, options.resources) for part in (*scanned, *tables))
    if sample and not tables:
        return rows, total
    total = len(rows) + len(rows.failures)
    if sample and len(rows) > sample:
        rows = select_rows(rows, _draw(len(rows), sample))
    return rows, total


def _scan_pieces(
    pieces: Sequence[ScanTask], options: ScanOptions, parts: Path, run: Runner, progress: Progress,
) -> list[Rows]:  # fmt: skip
    """Return the rows of each piece: those saved earlier, and the others scanned and saved now."""
    paths, rows_by_piece = list[Path](), dict[int, Rows]()
    for number, piece in enumerate(pieces):
        paths.append(parts / f"{_cache_key(piece, options)}.npz")
        if (rows := load_rows(paths[-1])) is not None:
            rows_by_piece[number] = rows
        if (number + 1) % REPORT_EVERY == 0:
            progress(len(rows_by_piece), len(pieces))
    missing = [number for number in range(len(pieces)) if number not in rows_by_piece]
    progress(len(rows_by_piece), len(pieces))
    for at, rows in run(measure_task, [pieces[number] for number in missing], options):
        save_rows(paths[missing[at]], rows)
        rows_by_piece[missing[at]] = rows
        progress(len(rows_by_piece), len(pieces))
    return [rows_by_piece[number] for number in range(len(pieces))]


def _draw_pieces(
    tasks: Sequence[ScanTask], options: ScanOptions, run: Runner, sample: int
) -> tuple[list[ScanTask], int]:
    """Count all samples, and return the tasks with the rows drawn from each, and the count."""
    counts: list[tuple[int, ...]] = [()] * len(tasks)
    for number, file_counts in run(count_samples, tasks, options):
        counts[number] = file_counts
    sizes = np.array([max(0, count) for file_counts in counts for count in file_counts], np.int64)
    total = int(sizes.sum())
    if total <= sample:
        return whole_pieces(tasks, options), total
    drawn = _draw(total, sample)
    ends = np.cumsum(sizes)
    shard_of = np.searchsorted(ends, drawn, side="right")
    rows = [drawn[shard_of == shard] - (ends[shard] - sizes[shard]) for shard in range(len(sizes))]
    remaining, pieces = iter(rows), list[ScanTask]()
    for task, file_counts in zip(tasks, counts, strict=True):
        chosen = tuple(tuple(next(remaining).tolist()) for _ in file_counts)
        pieces.append(replace(task, chosen=chosen))
    return pieces, total


def whole_pieces(tasks: Sequence[ScanTask], options: ScanOptions) -> list[ScanTask]:
    """Return tasks with large data sets in ranges of rows, to scan all of them."""
    return [piece for task in tasks for piece in _ranges(task, options)]


def _ranges(task: ScanTask, options: ScanOptions) -> Iterator[ScanTask]:
    """Yield a dataset in ranges of TASK_ROWS rows, any other task as it is."""
    if task.kind != "dataset":
        yield task
        return
    length = len(open_dataset(task.paths[0], options))
    for start in range(0, length, TASK_ROWS):
        yield replace(task, start=start, stop=min(start + TASK_ROWS, length))


def _cache_key(task: ScanTask, options: ScanOptions) -> str:
    """Return a hash of all that a task's rows depend on: files, options, code and libraries."""
    code: Any = ""
    if task.kind == "dataset":
        source = open_dataset(task.paths[0], options)
        code = [
            source.fingerprint(),
            KnownData(unwrap_dataset(source), len(source)).look_at_samples().identity,
        ]
    elif hasattr(transform := make_transform(options), "fingerprint"):
        code = transform.fingerprint()
    chosen = [options.transform_path, options.cost_path, options.decode]
    costs = None if options.found_costs is None else options.found_costs.to_dict()
    return digest([FORMAT, task.fingerprint(), *chosen, costs, code, library_versions()])


def _draw(total: int, sample: int) -> Int64:
    """Return `sample` of `total` numbers, drawn at random, ascending."""
    return np.sort(np.random.default_rng(0).choice(total, sample, replace=False))
