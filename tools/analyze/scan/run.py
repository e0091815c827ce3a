"""Running the scan: the same map over tasks in this process, on all cores, or on a Ray cluster.

Every finished task is kept in a file of its own, named after what it is about, so that a scan that
was interrupted goes on where it was and scans nothing twice.
"""

import importlib
import itertools
import multiprocessing
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ....workers.sources.fingerprint import digest, library_versions
from ...console.signals import wish_to_end
from .count_task import ScanOptions, count, make_transform, open_dataset, scan
from .rows import Rows, keep, kept, merge, only, take
from .sources import TASK_ROWS, ScanTask

T = TypeVar("T")
Work = Callable[[ScanTask, ScanOptions], T]
PATIENCE_S = 5.0
Runner = Callable[[Work[Any], Sequence[ScanTask], ScanOptions], Iterator[tuple[int, Any]]]
Done = Callable[[int, int], object]


def uncounted(_: int, __: int) -> None:
    """Tell nobody how far it is."""


def scan_all(
    tasks: Sequence[ScanTask],
    how: ScanOptions,
    parts: Path,
    run: Runner,
    sample: int = 0,
    seed: int = 0,
    done: Done = uncounted,
) -> tuple[Rows, int]:
    """Return the merged rows and how many samples there are in all.

    parts: the folder of kept results. sample: look at so many only, drawn at random (0: all).
    done(tasks finished, tasks) is called as it goes on.
    """
    tables = {at: scan(task, how) for at, task in enumerate(tasks) if task.kind == "table"}
    others = [at for at in range(len(tasks)) if at not in tables]
    pieces, total = _pieces([tasks[at] for at in others], how, run, sample, seed, tables)
    names, found = list[Path](), dict[int, Rows]()
    for at, task in enumerate(pieces):
        names.append(parts / f"{digest([task.about(), _about(how, task)])}.npz")
        if (rows := kept(names[-1])) is not None:
            found[at] = rows
        if at % 64 == 63:
            done(len(found), len(pieces))
    missing = [at for at in range(len(pieces)) if at not in found]
    done(len(found), len(pieces))
    for number, rows in run(scan, [pieces[at] for at in missing], how):
        keep(names[missing[number]], rows)
        found[missing[number]] = rows
        done(len(found), len(pieces))
    parts_in_order = [*(found[at] for at in range(len(pieces))), *tables.values()]
    rows = merge(only(part, how.tables) for part in parts_in_order)
    if not sample:
        return rows, len(rows) + len(rows.failures)
    rest = total + sum(len(table) + len(table.failures) for table in tables.values())
    if tables and len(rows) > sample:
        rows = take(rows, _drawn(len(rows), sample, seed))
    return rows, rest


def in_this_process(
    work: Work[T], tasks: Sequence[ScanTask], how: ScanOptions
) -> Iterator[tuple[int, T]]:
    """Do the tasks one after the other."""
    for number, task in enumerate(tasks):
        yield number, work(task, how)


def on_cores(cores: int) -> Runner:
    """Return a runner over so many processes; few tasks are done in this one.

    An interrupt ends it with KeyboardInterrupt when what has been begun is done, and handed over.
    """

    def run(work: Work[T], tasks: Sequence[ScanTask], how: ScanOptions) -> Iterator[tuple[int, T]]:
        if cores < 2 or len(tasks) < 2:
            yield from in_this_process(work, tasks, how)
            return
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(cores, len(tasks)), context, _ignore_interrupts)
        with wish_to_end() as wished:
            try:
                waiting, begun = enumerate(tasks), dict[Future[T], int]()
                room = cores + 1  # what has been begun cannot be taken back, so little is
                while room or begun:
                    for at, task in itertools.islice(waiting, 0 if wished() else room):
                        begun[pool.submit(work, task, how)] = at
                    finished, _ = wait(begun, return_when=FIRST_COMPLETED)
                    for future in finished:
                        yield begun.pop(future), future.result()
                    room = len(finished)
            finally:
                pool.shutdown(cancel_futures=True)
            if wished():
                raise KeyboardInterrupt

    return run


def on_ray(address: str) -> Runner:
    """Return a runner over a Ray cluster; its nodes must see the same files under the same paths.

    Raises ValueError where ray is not installed, ConnectionError where no cluster answers.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise ValueError("--ray needs Ray; pip install 'counterpoise[ray]'") from None

    _reach(address)

    def run(work: Work[T], tasks: Sequence[ScanTask], how: ScanOptions) -> Iterator[tuple[int, T]]:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level="warning")
        remote = ray.remote(num_cpus=1, max_retries=3, scheduling_strategy="SPREAD")(work)
        pending = {remote.remote(task, how): number for number, task in enumerate(tasks)}
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1)
            for reference in ready:
                number = pending.pop(reference)
                yield number, ray.get(reference)

    return run


def _reach(address: str) -> None:
    """Raise ConnectionError if nobody listens at host:port, for which Ray itself waits long."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
    except OSError as error:
        raise ConnectionError(
            f"no Ray cluster at {address} ({error}); start one with `ray start --head`, and give "
            "the address that it prints"
        ) from None


def _pieces(
    tasks: Sequence[ScanTask],
    how: ScanOptions,
    run: Runner,
    sample: int,
    seed: int,
    tables: dict[int, Rows],
) -> tuple[list[ScanTask], int]:
    """Cut datasets into ranges; with a sample, count first and choose rows of every task."""
    if not sample:
        return [piece for task in tasks for piece in _ranges(task, how)], 0
    counts: list[tuple[int, ...]] = [()] * len(tasks)
    for number, found in run(count, tasks, how):
        counts[number] = found
    flat = np.array([max(0, n) for found in counts for n in found], np.int64)
    total = int(flat.sum())
    if tables or total <= sample:
        return [piece for task in tasks for piece in _ranges(task, how)], total
    drawn = np.sort(_drawn(total, sample, seed))
    ends = np.cumsum(flat)
    shard_of = np.searchsorted(ends, drawn, side="right")
    rows = [drawn[shard_of == at] - (ends[at] - flat[at]) for at in range(len(flat))]
    chosen, at = list[ScanTask](), 0
    for task, found in zip(tasks, counts, strict=True):
        picked = tuple(tuple(row.tolist()) for row in rows[at : at + len(found)])
        chosen.append(replace(task, chosen=picked))
        at += len(found)
    return chosen, total


def _ranges(task: ScanTask, how: ScanOptions) -> Iterator[ScanTask]:
    if task.kind != "dataset":
        yield task
        return
    length = len(open_dataset(task.paths[0], how))
    for start in range(0, length, TASK_ROWS):
        yield replace(task, start=start, stop=min(start + TASK_ROWS, length))


def _about(how: ScanOptions, task: ScanTask) -> list[Any]:
    """What besides the files decides what a scan finds."""
    made: Any = ""
    if task.kind == "dataset":
        made = open_dataset(task.paths[0], how).fingerprint()
    elif hasattr(transform := make_transform(how), "fingerprint"):
        made = transform.fingerprint()
    return [how.imported, how.cost, how.decode, how.source_field, made, library_versions()]


def _drawn(total: int, sample: int, seed: int) -> Any:
    return np.sort(np.random.default_rng(seed).choice(total, sample, replace=False))


def _ignore_interrupts() -> None:
    """Ctrl-C goes to the whole group of processes; the parent alone answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
