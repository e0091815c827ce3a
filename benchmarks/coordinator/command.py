"""`make bench NAME=coordinator`: the CPU time of the balancer's decisions, without sockets.

One epoch in each cell of ranks x workers, with workers that answer at once and ranks that take at
once, so that nothing but the coordinator is measured. Planning is counted apart: `published`.
"""

import os
import statistics
from collections.abc import Sequence

import click
from rich.progress import Progress
from rich.table import Table

from counterpoise.tools.console.reporting import emit, progress_console

from . import served
from .driven import Driven
from .memory import MODES, memory_table
from .memory import measure as measure_memory
from .served import ServedSize

CELLS = "1x2,8x16,64x128,512x1024,1296x2048"
Cell = tuple[int, int]
# Ranks and workers over tcp.
TCP_CELL = 4, 4


def read_cells(_: click.Context, __: click.Parameter, text: str) -> list[Cell]:
    """Return the cells (ranks, workers) of an option; raises BadParameter for anything else."""
    try:
        cells = [(int(ranks), int(workers)) for ranks, workers in _pairs(text)]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not like {CELLS}") from None
    if not all(ranks > 0 and workers > 0 for ranks, workers in cells):
        raise click.BadParameter("a cell needs a rank and a worker at least")
    return cells


@click.command("coordinator")
@click.option(
    "--cells", default=CELLS, show_default=True, callback=read_cells, help="RANKSxWORKERS."
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--steps", type=click.IntRange(1), default=3, show_default=True, help="Of an epoch.")
@click.option("--samples-per-step", type=click.IntRange(1), default=1920, show_default=True)
@click.option(
    "--memory",
    type=click.IntRange(1),
    help="Measure the memory for an epoch of so many samples instead, in each mode.",
)
@click.option(
    "--tcp", is_flag=True, help="Measure a balancer's process with 4 ranks and 4 workers instead."
)
@click.option("--payload-bytes", type=click.IntRange(1), default=150_528, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    cells: list[Cell],
    rounds: int,
    steps: int,
    samples_per_step: int,
    memory: int | None,
    tcp: bool,
    payload_bytes: int,
    as_json: bool,
) -> None:
    """Measure the coordinator's own time per sample and per message, or its memory.

    With --tcp: CPU time of a whole balancer, payloads inline and pulled, with keys and without;
    microbatches of 32.

    \b
    Example:
      make bench NAME=coordinator ARGS='--rounds 10 --json'
      make bench NAME=coordinator ARGS='--memory 10000000 --json'
      make bench NAME=coordinator ARGS='--tcp --steps 20 --rounds 5 --json'
    """  # noqa: D301
    if memory is not None:
        found_by_mode = {mode: measure_memory(mode, memory) for mode in MODES}
        emit({"modes": found_by_mode}, as_json, memory_table(found_by_mode))
        return
    if tcp:
        _run_tcp(ServedSize(*TCP_CELL, steps, samples_per_step, payload_bytes), rounds, as_json)
        return
    if max(ranks for ranks, _ in cells) > samples_per_step:
        raise click.UsageError("give as many --samples-per-step as the largest cell has ranks")
    _run_cells(cells, rounds, steps, samples_per_step, as_json)


def _run_cells(
    cells: list[Cell], rounds: int, steps: int, samples_per_step: int, as_json: bool
) -> None:
    """Measure a coordinator in each cell, and print what was found."""
    found: dict[Cell, list[Driven]] = {cell: [] for cell in cells}
    with Progress(console=progress_console, transient=True) as progress:
        task = progress.add_task("epochs", total=len(cells) * rounds)
        for _ in range(rounds):
            for cell in cells:
                driven = Driven(*cell, steps, samples_per_step)
                driven.run()
                found[cell].append(driven)
                progress.advance(task)
    report = {
        "samples_per_step": samples_per_step,
        "steps": steps,
        "rounds": rounds,
        "cells": [_summary(*cell, runs) for cell, runs in found.items()],
        "load_average": os.getloadavg()[0],
    }
    emit(report, as_json, _table(report["cells"]))


def _run_tcp(size: ServedSize, rounds: int, as_json: bool) -> None:
    """Measure a balancer over tcp, by the way of payloads, and print what was found."""
    found: dict[served.PayloadWay, list[float]] = {way: [] for way in served.WAYS}
    with Progress(console=progress_console, transient=True) as progress:
        task = progress.add_task("epochs", total=len(found) * rounds)
        for way, us_per_sample in served.measure(size, rounds):
            found[way].append(us_per_sample)
            progress.advance(task)
    report = served.report(size, found)
    emit(report, as_json, served.table(report))


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(ranks, workers) for ranks, workers in (each.split("x") for each in text.split(","))]


def _summary(ranks: int, workers: int, runs: Sequence[Driven]) -> dict[str, object]:
    per_sample = [1e6 * run.running.own_s / run.delivered for run in runs]
    per_message = [1e6 * run.running.own_s / run.running.messages for run in runs]
    planning = [1e6 * run.running.planning_s / run.delivered for run in runs]
    return {
        "ranks": ranks,
        "workers": workers,
        "us_per_sample": statistics.median(per_sample),
        "us_per_sample_range": [min(per_sample), max(per_sample)],
        "us_per_message": statistics.median(per_message),
        "us_per_message_range": [min(per_message), max(per_message)],
        "planning_us_per_sample": statistics.median(planning),
        "joining_s": statistics.median(run.joining.handling_s for run in runs),
        "messages": dict(runs[0].kinds),
    }


def _table(cells: object) -> Table:
    table = Table(title="the coordinator's CPU time, medians (range), planning apart")
    for heading in ("ranks", "workers", "us a sample", "us a message", "planning", "joining"):
        table.add_column(heading, justify="right")
    assert isinstance(cells, list)
    for cell in cells:
        table.add_row(
            f"{cell['ranks']:,}",
            f"{cell['workers']:,}",
            _ranged(cell["us_per_sample"], cell["us_per_sample_range"]),
            _ranged(cell["us_per_message"], cell["us_per_message_range"]),
            f"{cell['planning_us_per_sample']:.0f} us a sample",
            f"{cell['joining_s']:.2f} s",
        )
    return table


def _ranged(median: float, ends: Sequence[float]) -> str:
    return f"{median:.0f} ({ends[0]:.0f}-{ends[1]:.0f})"
