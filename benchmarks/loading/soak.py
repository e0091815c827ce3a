"""`make bench NAME=soak`: shows what grows while loaders run at full speed for long.

A trainer in a process of its own takes batches without a pause, by a plain loader, a balanced one,
or by balanced ones that are made anew for each epoch. Memory, descriptors and threads of it and of
all processes below it are looked at from outside; what counts is their slope.
"""

import multiprocessing
import os
import time
from collections.abc import Sequence
from itertools import combinations
from multiprocessing.connection import Connection as Pipe
from statistics import median
from typing import Any

import click
import numpy as np
from rich.table import Table

from counterpoise import Balance, DataLoader
from counterpoise.tools.console.reporting import emit

from .systems.cell import Cell, parse_cell
from .systems.peers import open_system
from .usage import PARTS, Usage, usage_by_part

KINDS = ("plain", "balanced", "remade")
FIGURES = ("nbytes", "descriptors", "threads")
# Of all looks, this part at the beginning is not counted: buffers grow to their size.
_WARM_UP = 0.2
# Seconds of a run, and what was used by then by each part.
Look = tuple[float, dict[str, Usage]]


@click.command(
    "soak", epilog="Example: make bench NAME=soak ARGS='--seconds 1800 --every 10 --json'"
)
@click.option("--kind", type=click.Choice(KINDS), multiple=True, help="Of these; default: all.")
@click.option("--seconds", type=click.FloatRange(1), default=60.0, show_default=True)
@click.option("--every", type=click.FloatRange(0.05), default=1.0, show_default=True)
@click.option("--cell", default="150000x32", metavar="BYTESxBATCH", show_default=True)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    kind: tuple[str, ...], seconds: float, every: float, cell: str, workers: int, as_json: bool
) -> None:
    """Run loaders at full speed; show what memory, descriptors and threads grow by in an hour."""
    if seconds < 10 * every:
        raise ValueError(
            f"--seconds {seconds:g} --every {every:g} are fewer than 10 looks: look more often, or "
            "run longer"
        )
    of_all = Cell(*parse_cell(cell), workers, "touch")
    report = {
        "seconds": seconds,
        "kinds": {each: _soak(each, of_all, seconds, every) for each in kind or KINDS},
        "load_average": os.getloadavg()[0],
    }
    emit(report, as_json, _table(report))


def figures_of(looks: Sequence[Look]) -> dict[str, dict[str, Any]]:
    """Return for each part and figure its first and last value, its most, and what an hour adds.

    First and last are medians of a third of the looks; an hour's growth is the median slope of all
    pairs of looks, which a few odd ones do not change (Theil 1950, Sen 1968).
    """
    counted = looks[int(len(looks) * _WARM_UP) :]
    found: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        seen = [(at, used[part]) for at, used in counted if part in used]
        if len(seen) < 3:
            continue
        third = len(seen) // 3
        found[part] = {"processes": median(used.processes for _, used in seen)}
        for name in FIGURES:
            values = [getattr(used, name) for _, used in seen]
            times = [at for at, _ in seen]
            slopes = [
                (values[b] - values[a]) / (times[b] - times[a])
                for a, b in combinations(range(len(seen)), 2)
            ]
            found[part][name] = {
                "first": median(values[:third]),
                "last": median(values[-third:]),
                "most": max(values),
                "per_hour": 3600 * median(slopes),
            }
    return found


def _soak(kind: str, cell: Cell, seconds: float, every: float) -> dict[str, Any]:
    """Return the figures of one kind of loader."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    trainer = context.Process(target=_train, args=(theirs, kind, cell))
    trainer.start()
    theirs.close()
    looks: list[Look] = []
    try:
        ours.recv()  # the first epoch is over
        begun = time.monotonic()
        while (now := time.monotonic() - begun) < seconds:
            looks.append((now, usage_by_part(trainer.pid or 0)))
            if ours.poll(every):
                break
        ours.send("end")
        samples = ours.recv()
    except (EOFError, OSError) as error:
        raise RuntimeError("the trainer died; its own messages are above") from error
    finally:
        ours.close()
        trainer.join()
    rate = samples / (time.monotonic() - begun)
    return {"samples_per_s": rate, "looks": len(looks), "parts": figures_of(looks)}


def _train(pipe: "Pipe[Any, Any]", kind: str, cell: Cell) -> None:
    """Take epochs until the pipe has something; send None after the first, at last the samples."""
    import torch

    torch.set_num_threads(1)
    kept = None if kind == "remade" else _loader(kind, cell)
    samples = 0
    try:
        _epoch(kind, cell, kept)
        pipe.send(None)
        while not pipe.poll():
            samples += _epoch(kind, cell, kept)
        pipe.send(samples)
    finally:
        if kept is not None:
            kept.close()


def _epoch(kind: str, cell: Cell, kept: Any) -> int:
    """Take an epoch's batches, of the loader given or of a new one; return the samples."""
    loader, samples = _loader(kind, cell) if kept is None else kept, 0
    try:
        for batch in loader:
            tensor = batch["input_ids"] if isinstance(batch, dict) else batch
            tensor.flatten()[0].item()
            samples += len(batch["cu_seq_lens"]) - 1 if isinstance(batch, dict) else len(batch)
    finally:
        if kept is None:
            loader.close()
    return samples


def _loader(kind: str, cell: Cell) -> Any:
    return open_system("ours", cell) if kind == "plain" else _balanced(cell)


class _Pictures:
    """Sixteen samples with pixels and a few tokens, again and again."""

    def __init__(self, nbytes: int, count: int) -> None:
        self._count = count
        self._text = {"input_ids": np.arange(8), "tiles_per_image": np.ones(1, np.int64)}
        shape = (1, 1, 8, nbytes // 8)
        self._tiles = [np.full(shape, n, np.uint8) for n in range(16)]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self._text, "pixel_values": self._tiles[index % 16]}


def _balanced(cell: Cell) -> Any:
    """Return a balanced loader of arrays, packed."""
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
    )


def _table(report: dict[str, Any]) -> Table:
    """Return the report as a table, one row for each kind of loader and part."""
    made = Table(title=f"{report['seconds']:g} s at full speed: medians, and what an hour adds")
    for column in ("loader", "samples/s", "processes of", "MB", "MB/h", "descriptors", "/h",
                   "threads", "/h"):  # fmt: skip
        made.add_column(column, justify="right")
    for kind, soaked in report["kinds"].items():
        for part, figures in soaked["parts"].items():
            nbytes, descriptors, threads = (figures[name] for name in FIGURES)
            made.add_row(
                kind,
                f"{soaked['samples_per_s']:.0f}",
                f"{figures['processes']:g} {part}",
                f"{nbytes['first'] / 1e6:.1f} to {nbytes['last'] / 1e6:.1f}",
                f"{nbytes['per_hour'] / 1e6:+.2f}",
                f"{descriptors['first']:g} to {descriptors['last']:g}",
                f"{descriptors['per_hour']:+.2f}",
                f"{threads['first']:g} to {threads['last']:g}",
                f"{threads['per_hour']:+.2f}",
            )
    return made
