"""`make bench NAME=transports`: CPU time of a balanced loop, by process and transport.

The dataset's samples are arrays that exist, in the packed layout, so what is left is the loader's
own work. One loader for each transport is open, with persistent workers; they take turns.
"""

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from counterpoise.tools.bench.processes import cpu_s
from counterpoise.tools.console.reporting import emit
from counterpoise.tools.console.spread import spread

from .systems.cell import Cell, cells, parse_cell

TRANSPORTS = ("arena", "inline")
CELLS = ((150_000, 32), (602_112, 32))
PARTIES = ("trainer", "balancer", "workers")


@click.command("transports")
@click.option("--workers", type=int, multiple=True, default=(1, 2), show_default=True)
@click.option("--pairs", type=click.IntRange(1), default=10, show_default=True)
@click.option("--cell", multiple=True, metavar="BYTESxBATCH", help="Of these two; default: all.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(workers: tuple[int, ...], pairs: int, cell: tuple[str, ...], as_json: bool) -> None:
    """Compare the CPU time of balanced loops, arena against inline.

    Example: make bench NAME=transports ARGS="--pairs 10 --json"
    """
    wanted = cells([parse_cell(each) for each in cell] or CELLS, workers, ("touch",))
    passes: dict[Cell, dict[str, list[BalancedPass]]] = {
        each: {name: [] for name in TRANSPORTS} for each in wanted
    }
    for each, name, measured in measure(wanted, pairs):
        passes[each][name].append(measured)
    found = report(passes, pairs)
    emit(found, as_json, table(found))


@dataclass(frozen=True, slots=True)
class BalancedPass:
    """One pass: samples per second, and CPU microseconds per sample of each kind of process."""

    rate: float
    trainer: float
    balancer: float
    workers: float

    @property
    def all(self) -> float:
        """CPU microseconds per sample of all processes together."""
        return self.trainer + self.balancer + self.workers


def measure(wanted: Sequence[Cell], rounds: int) -> Iterator[tuple[Cell, str, BalancedPass]]:
    """Yield (cell, transport, pass) in turns, after a first pass of each that warms it up."""
    for cell in wanted:
        loaders = {name: loader_of(name, cell) for name in TRANSPORTS}
        try:
            for loader in loaders.values():
                _one_pass(loader)
            for number in range(rounds):
                for name in TRANSPORTS[number % 2 :] + TRANSPORTS[: number % 2]:
                    yield cell, name, _one_pass(loaders[name])
        finally:
            for loader in loaders.values():
                loader.close()


class _Pictures:
    """Sixteen samples with pixels and a few tokens, again and again."""

    def __init__(self, nbytes: int, count: int) -> None:
        import numpy as np

        self._count = count
        self._text = {"input_ids": np.arange(8), "tiles_per_image": np.ones(1, np.int64)}
        shape = (1, 1, 8, nbytes // 8)
        self._tiles = [np.full(shape, n, np.uint8) for n in range(16)]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self._text, "pixel_values": self._tiles[index % 16]}


def loader_of(transport: Any, cell: Cell) -> Any:
    """Return a balanced loader of arrays, packed, by a transport."""
    from counterpoise.balancer.planning.problem.balance import Balance
    from counterpoise.loader import DataLoader

    count = cell.batches * cell.batch_size
    return DataLoader(
        _Pictures(cell.sample_bytes, count),
        batch_size=cell.batch_size,
        shuffle=True,
        num_workers=cell.workers,
        persistent_workers=True,
        multiprocessing_context="fork",
        balance=Balance("fixed", layout="packed"),
        cost={"tokens": [1 + n % 7 for n in range(count)]},
        transport=transport,
    )


def _one_pass(loader: Any) -> BalancedPass:
    batches = iter(loader)
    first = next(batches)
    pids = _processes(loader)
    begun, own, samples = time.perf_counter(), time.process_time(), 0
    before = [cpu_s(each) for each in pids]
    del first
    for batch in batches:
        samples += batch["tiles_per_image"].numel()
        batch["pixel_values"][0, 0, 0, 0].item()
    seconds, own = time.perf_counter() - begun, time.process_time() - own
    spent = [cpu_s(each) - since for each, since in zip(pids, before, strict=True)]
    each_us = [1e6 * value / samples for value in (own, *spent)]
    return BalancedPass(samples / seconds, *each_us)


def _processes(loader: Any) -> tuple[list[int], list[int]]:
    """Return the process ids of a balanced loader's balancer, and of its workers."""
    processes = loader._balanced._connection._processes
    supervisor = processes.pool.supervisor_pid
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text()
    return [processes.balancer.pid], [int(each) for each in children.split()]


def report(passes: dict[Cell, dict[str, list[BalancedPass]]], rounds: int) -> dict[str, Any]:
    """Return the figures of every cell: CPU per sample, and ratios of the rounds."""
    return {
        "rounds": rounds,
        "cells": [asdict(cell) | _figures(found) for cell, found in passes.items()],
        "load_average": os.getloadavg()[0],
    }


def _figures(found: dict[str, list[BalancedPass]]) -> dict[str, Any]:
    pairs = list(zip(found["arena"], found["inline"], strict=True))
    ratios = {
        "rate": [a.rate / b.rate for a, b in pairs],
        "cpu": [a.all / b.all for a, b in pairs],
    }
    medians = {
        name: {party: statistics.median(getattr(p, party) for p in each) for party in PARTIES}
        for name, each in found.items()
    }
    return medians | {f"{name}_ratio": spread(found) for name, found in ratios.items()}


def table(found: dict[str, Any]) -> Table:
    """Return the report as a table, one row for each cell and transport."""
    made = Table(title="balanced loops: CPU microseconds a sample; ratios are arena / inline")
    for column in ("sample", "batch", "workers", "transport", *PARTIES, "samples/s", "CPU"):
        made.add_column(column, justify="right")
    for cell in found["cells"]:
        for name in TRANSPORTS:
            ratios = [cell[f"{kind}_ratio"] for kind in ("rate", "cpu")]
            texts = [f"{r['median']:.2f} ({r['low']:.2f} to {r['high']:.2f})" for r in ratios]
            made.add_row(
                *(str(cell[each]) for each in ("sample_bytes", "batch_size", "workers")),
                name,
                *(f"{cell[name][party]:.0f}" for party in PARTIES),
                *(texts if name == "arena" else ("", "")),
            )
    return made
