"""Measures the samples of one task: a pure function from a piece of a data set to `Rows`.

It runs in any process, on any machine. Tar shards go through the same dataset and transform as in
training, so the indexes and costs that a scan writes are found again by training. A shard that
cannot be opened and a sample that cannot be measured become failures; only a failing disk, which
would fail every later read too, ends the scan.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....workers.mixture.mixture import Mixture
from ....workers.sources.failures import classify_failure, explain_failure
from ....workers.sources.interface import Probe, Source, checked_probe
from ....workers.sources.plain import unwrap_dataset
from ....workers.sources.records import RecordDataset
from ....workers.sources.urls import is_url, shown
from .rows import Failure, FailureKind, Rows, merge, no_rows, read_table
from .sources import ScanOptions, ScanTask, open_dataset, open_shard, shard_series

TRUNCATED = re.compile(
    r"truncat|ends without|ends before|not enough image data|incomplete", re.IGNORECASE
)


# Costs of a shard that are kept together, as all are at its end: one by one, the first ones take
# a quarter of the scan's time.
WRITE_FROM = 1024
# Samples that a store is asked for before they are probed, twice as many at most.
STORED_AHEAD = 64


def measure_task(task: ScanTask, options: ScanOptions) -> Rows:
    """Return the costs of a task's samples, and the samples that cannot be used."""
    if task.kind == "table":
        return read_table(Path(task.paths[0]), options.resources)
    if task.kind == "dataset":
        source = open_dataset(task.paths[0], options)
        chosen = task.chosen[0] if task.chosen is not None else range(task.start, task.stop)
        label = task.paths[0].rpartition(":")[2]
        mixture: Any = unwrap_dataset(source)
        source.epoch_rows.refuse_unsaid_costs()

        def find_source(index: int) -> str:
            if isinstance(mixture, Mixture):
                return mixture.find_source(mixture.key(index))
            return _find_series(source, index) if isinstance(source, RecordDataset) else label

        try:
            return _measure(source, chosen, options, find_source)
        finally:
            source.keep()
    chosen_by_shard = task.chosen or (None,) * len(task.paths)
    shards = zip(task.paths, chosen_by_shard, strict=True)
    return merge(_measure_shard(path, chosen, options) for path, chosen in shards)


def count_samples(task: ScanTask, options: ScanOptions) -> tuple[int, ...]:
    """Return the samples of each of a task's shards, from headers only; -1 for a broken one."""
    if task.kind == "dataset":
        return (len(open_dataset(task.paths[0], options)),)
    counts = []
    for path in task.paths:
        try:
            counts.append(len(open_shard(path, options)))
        except ValueError:
            counts.append(-1)
    return tuple(counts)


def _measure_shard(path: str, chosen: Sequence[int] | None, options: ScanOptions) -> Rows:
    try:
        dataset = open_shard(path, options)
    except ValueError as error:
        name = Path(shown(path) if is_url(path) else path).name
        return no_rows([Failure(name, name, "shard", str(error))])
    dataset.write_from = WRITE_FROM
    try:
        indexes = range(len(dataset)) if chosen is None else chosen
        return _measure(dataset, indexes, options, lambda index: _find_series(dataset, index))
    finally:
        dataset.keep()


def _find_series(dataset: Any, index: int) -> str:
    """Return the name that a sample's file shares with others of its series."""
    return shard_series(Path(dataset.locate_file(index)))


def _measure(
    source: Source, indexes: Sequence[int], options: ScanOptions, source_of: Callable[[int], str]
) -> Rows:
    """Measure samples of a source one after another; `source_of` returns a sample's source."""
    measured, failures = list[tuple[Probe, str]](), list[Failure]()
    stored = source.reads_stores
    for number, index in enumerate(indexes):
        if stored and number % STORED_AHEAD == 0:
            from ....workers.stores.files import expect_samples  # what is local does without

            soon = indexes[number : number + 2 * STORED_AHEAD]
            expect_samples(source, ((ahead, not options.decode) for ahead in soon))
        try:
            probe = _measure_sample(source, index, options.decode)
        except Exception as error:
            # A failing disk is not the sample's fault, and a report without its samples is wrong.
            if classify_failure(error) == "io":
                raise
            reason = explain_failure(error)
            kind: FailureKind = "truncated" if TRUNCATED.search(reason) else "unreadable"
            failures.append(Failure(source.key(index), source_of(index), kind, reason))
            continue
        label = source_of(index)
        first = measured[0][0] if measured else probe
        if probe.cost.keys() == first.cost.keys():
            measured.append((probe, label))
        else:
            # One table holds all samples, so all need the same costs as the first.
            reason = f"costs {', '.join(probe.cost)}, others {', '.join(first.cost)}"
            failures.append(Failure(probe.key, label, "unreadable", reason))
    return _rows(measured, failures)


def _measure_sample(source: Source, index: int, decode: bool) -> Probe:
    """Return what a sample is said to cost; it is decoded where that is asked for."""
    # Probing one of files looks first at what is known of it.
    probe = None if isinstance(source, RecordDataset) else source.known(index)
    if probe is None:
        probe = checked_probe(source.probe(index), source.key(index))
    if decode:
        source.load(index, epoch=0, seed=0)
    return probe


def _rows(measured: Sequence[tuple[Probe, str]], failures: Sequence[Failure]) -> Rows:
    """Return probes with their sources as rows."""
    if not measured:
        return no_rows(failures)
    probes = [probe for probe, _ in measured]
    # Sources are numbered in the order in which they are found.
    numbers = {label: number for number, label in enumerate(dict.fromkeys(s for _, s in measured))}
    return Rows(
        resources=tuple(probes[0].cost),
        costs=np.array([list(probe.cost.values()) for probe in probes], np.int64),
        source_of=np.array([numbers[label] for _, label in measured], np.int64),
        sources=tuple(numbers),
        keys=tuple(probe.key for probe in probes),
        failures=tuple(failures),
    )
