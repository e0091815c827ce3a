"""`make bench NAME=overhead`: what a balanced loop costs a sample, beside the data set's work.

Samples whose costs differ, as tiles and tokens of pictures and texts do, in microbatches that fill
budgets, packed. They are small, and exist, so that a sample's bytes and its decoding weigh little:
what is left is the price of a balanced loop. What loading a sample takes is measured in a process
that does nothing else, as is one copy of its bytes, and taken off.

For each size of microbatch there are two loaders, which take turns: costs are *known* to the later
epochs of one, whose workers stay, and *measured* anew in each epoch of the other.
"""

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any

import click
import numpy as np
from rich.progress import Progress
from rich.table import Table

from counterpoise.tools.bench.processes import MeasuredProcess, cpu_s_below
from counterpoise.tools.console.reporting import emit, progress_console, spread

from .usage import part_of

COSTS = ("known", "measured")
# Microbatches of a step; samples differ, so that budgets need some room beyond the mean.
ACCUMULATE, ROOM = 4, 1.4
MEDIAN_TOKENS, SPREAD, TOKENS, TILES = 300, 0.6, (16, 1500), 5
TILE_SIZE = 8
# Alone, the samples are loaded this often in a row, and copied so many at a time.
TIMES, AT_ONCE = 3, 16


@dataclass(frozen=True, slots=True)
class OverheadCell:
    """A loop: samples of a microbatch on average, of an epoch, workers, and a file of costs."""

    microbatch: int
    samples: int
    workers: int
    costs: str = ""


@dataclass(frozen=True, slots=True)
class OverheadPass:
    """CPU microseconds a sample of each kind of process; `rate`: samples per second."""

    trainer: float
    balancer: float
    workers: float
    rate: float


@dataclass(frozen=True, slots=True)
class OwnWork:
    """CPU microseconds a sample, alone: loading it, and copying its bytes once."""

    loading: float
    copy: float


Found = OverheadPass | OwnWork


class SmallSamples:
    """Samples of a few hundred tokens and a few tiny tiles; their numbers follow from a seed.

    With a file of costs (`tiles` and `tokens`, an .npz) they are the file's first samples.
    """

    def __init__(self, cell: OverheadCell) -> None:
        if cell.costs:
            with np.load(cell.costs) as found:
                tiles, tokens = found["tiles"], found["tokens"]
            self.tiles, self.tokens = tiles[: cell.samples], tokens[: cell.samples]
        else:
            draw = np.random.default_rng(0)
            drawn = MEDIAN_TOKENS * draw.lognormal(0, SPREAD, cell.samples)
            self.tokens = drawn.clip(*TOKENS).astype(np.int64)
            self.tiles = draw.integers(0, TILES + 1, cell.samples)
        most = int(self.tokens.max())
        self._ids = np.arange(most, dtype=np.int32)
        shape = (max(1, int(self.tiles.max())), 3, TILE_SIZE, TILE_SIZE)
        self._pixels = np.zeros(shape, np.uint8)
        # No image, or one with so many tiles.
        self._images = [np.array([n] if n else [], np.int32) for n in range(len(self._pixels) + 1)]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids, tiles = self._ids[: self.tokens[index]], self.tiles[index]
        return {
            "input_ids": ids,
            "labels": ids,
            "pixel_values": self._pixels[:tiles],
            "tiles_per_image": self._images[tiles],
        }


def loader_of(cell: OverheadCell, costs: str, room: float = ROOM, **more: Any) -> Any:
    """Return a balanced loader whose later epochs know the costs, or one that measures them.

    `room`: budgets are so many times what a microbatch has on average; more: DataLoader's.
    """
    from counterpoise.balancer.planning.problem.balance import Balance
    from counterpoise.loader import DataLoader

    samples = SmallSamples(cell)
    most = room * cell.microbatch
    budgets = {
        "tiles": int(most * samples.tiles.mean()),
        "tokens": int(most * samples.tokens.mean()),
    }
    budgets = {name: max(each, int(getattr(samples, name).max())) for name, each in budgets.items()}
    return DataLoader(
        samples,
        shuffle=True,
        num_workers=cell.workers,
        persistent_workers=costs == "known",
        multiprocessing_context="fork",
        balance=Balance(
            budgets=budgets,
            samples_per_step=ACCUMULATE * cell.microbatch,
            accumulate=ACCUMULATE,
            layout="packed",
        ),
        cost={"tiles": samples.tiles.tolist(), "tokens": samples.tokens.tolist()},
        **more,
    )


def measure(
    wanted: Sequence[OverheadCell], rounds: int
) -> Iterator[tuple[OverheadCell, str, Found]]:
    """Yield (cell, costs or "alone", what was found) in turns, after a first pass of each."""
    names = (*COSTS, "alone")
    for cell in wanted:
        systems = {name: MeasuredProcess(_serve, name, cell) for name in names}
        try:
            for number in range(rounds):
                turn = number % len(names)
                for name in names[turn:] + names[:turn]:
                    yield cell, name, systems[name].ask("pass")
        finally:
            for system in systems.values():
                system.close()


def _serve(pipe: "Pipe[Any, Any]", name: str, cell: OverheadCell) -> None:
    import torch

    torch.set_num_threads(1)
    loader = None
    try:
        if name == "alone":
            samples = SmallSamples(cell)
        else:
            loader = loader_of(cell, name)
            one_pass(loader)  # the first has the start of everything
        while pipe.recv():
            pipe.send(own_work(samples) if loader is None else one_pass(loader))
    finally:
        if loader is not None:
            loader.close()


def one_pass(loader: Any) -> OverheadPass:
    """Return what an epoch costs, from its first batch to its last, when workers still run."""
    batches = iter(loader)
    next(batches)
    begun, own, samples = time.perf_counter(), time.process_time(), 0
    before = cpu_s_below(os.getpid())
    for _ in range(len(loader) - 1):
        samples += len(next(batches)["cu_seq_lens"]) - 1
    own, now = time.process_time() - own, cpu_s_below(os.getpid())
    seconds = time.perf_counter() - begun
    spent = {"balancer": 0.0, "workers": 0.0}
    for pid, cpu in now.items():
        spent[part_of(pid)] += cpu - before.get(pid, 0.0)
    next(batches, None)  # the end
    spent_s = own, spent["balancer"], spent["workers"]
    each_us = (1e6 * each / samples for each in spent_s)
    trainer, balancer, working = each_us
    return OverheadPass(trainer, balancer, working, samples / seconds)


def own_work(samples: SmallSamples) -> OwnWork:
    """Return what it takes to load each sample, and to copy the bytes of all of them once."""
    count = TIMES * len(samples)
    begun = time.process_time()
    for _ in range(TIMES):
        for index in range(len(samples)):
            samples[index]
    loading = time.process_time() - begun
    nbytes = sum(value.nbytes for n in range(len(samples)) for value in samples[n].values())
    # A batch at a time, as the trainer's is.
    source = np.ones(AT_ONCE * nbytes // len(samples), np.uint8)
    copy = np.empty_like(source)
    begun = time.process_time()
    for _ in range(count // AT_ONCE):
        np.copyto(copy, source)
    copying = time.process_time() - begun
    return OwnWork(1e6 * loading / count, 1e6 * copying / count)


def report(
    found: Mapping[OverheadCell, Mapping[str, Sequence[Any]]], rounds: int
) -> dict[str, Any]:
    """Return the figures of every cell: medians of the rounds, with their range."""
    return {
        "rounds": rounds,
        "cells": [_figures(cell, by_name) for cell, by_name in found.items()],
        "load_average": os.getloadavg()[0],
    }


def _figures(cell: OverheadCell, found: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    alone: Sequence[OwnWork] = found["alone"]
    own = {
        "loading_us": spread([each.loading for each in alone]),
        "copy_us": spread([each.copy for each in alone]),
    }
    return asdict(cell) | own | {costs: _loop(found[costs], alone) for costs in COSTS}


def _loop(passes: Sequence[OverheadPass], alone: Sequence[OwnWork]) -> dict[str, Any]:
    """Return the figures of a loop; what is `beside` the data set's work is of the same round."""
    all_us = [each.trainer + each.balancer + each.workers for each in passes]
    beside = [spent - own.loading for spent, own in zip(all_us, alone, strict=True)]
    return {
        "trainer_us": spread([each.trainer for each in passes]),
        "balancer_us": spread([each.balancer for each in passes]),
        "workers_us": spread([each.workers for each in passes]),
        "all_us": spread(all_us),
        "beside_us": spread(beside),
        "samples_per_s": statistics.median(each.rate for each in passes),
    }


def table(found: Mapping[str, Any]) -> Table:
    """Return the report as a table, one row for each loop."""
    made = Table(title="balanced loops: CPU microseconds a sample, medians (range)")
    parts = ("trainer", "balancer", "workers", "all", "beside")
    for column in ("microbatch", "costs", *parts, "loading", "copy", "samples/s"):
        made.add_column(column, justify="right")
    for cell in found["cells"]:
        for costs in COSTS:
            loop = cell[costs]
            made.add_row(
                str(cell["microbatch"]),
                costs,
                *(_ranged(loop[f"{part}_us"]) for part in parts),
                *(f"{cell[name]['median']:.1f}" for name in ("loading_us", "copy_us")),
                f"{loop['samples_per_s']:,.0f}",
            )
    return made


def _ranged(each: Mapping[str, float]) -> str:
    return f"{each['median']:.1f} ({each['low']:.1f} to {each['high']:.1f})"


@click.command("overhead")
@click.option(
    "--microbatch", type=click.IntRange(2), multiple=True, default=(16, 64), show_default=True
)
@click.option("--samples", type=click.IntRange(1), default=12_800, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--costs", metavar="FILE", default="", help="An .npz with tiles and tokens.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    microbatch: tuple[int, ...], samples: int, workers: int, rounds: int, costs: str, as_json: bool
) -> None:
    """Measure what a balanced loop costs a sample, beside the data set's own work.

    \b
    Examples:
      make bench NAME=overhead ARGS='--rounds 5 --json'
      make bench NAME=overhead ARGS='--microbatch 16 --costs calibrated_665k.npz'
    """  # noqa: D301
    wanted = [OverheadCell(each, samples, workers, costs) for each in microbatch]
    if samples < 2 * ACCUMULATE * max(microbatch):
        raise click.UsageError(f"give two steps of {ACCUMULATE} microbatches at least as --samples")
    found: dict[OverheadCell, dict[str, list[Any]]] = {
        cell: {name: [] for name in (*COSTS, "alone")} for cell in wanted
    }
    with Progress(console=progress_console, transient=True) as progress:
        task = progress.add_task("passes", total=len(wanted) * rounds * (len(COSTS) + 1))
        for cell, name, each in measure(wanted, rounds):
            progress.advance(task)
            found[cell][name].append(each)
    made = report(found, rounds)
    emit(made, as_json, table(made))
