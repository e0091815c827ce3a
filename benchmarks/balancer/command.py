"""`make bench NAME=balancer`: a balancer's CPU time a sample by ranks, and its memory."""

import os
from collections.abc import Sequence
from typing import Any

import click
from rich.progress import Progress
from rich.table import Table

from counterpoise.tools.console.reporting import emit, make_table, progress_console, spread

from .driven import Driven
from .served import open_served
from .stand_ins import SAMPLES_PER_STEP

RANKS = "1,64,512,1296"


def read_ranks(_: click.Context, __: click.Parameter, text: str) -> list[int]:
    """Return the numbers of an option; raises BadParameter for anything else."""
    try:
        ranks = [int(number) for number in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not like {RANKS}") from None
    if not all(0 < number <= SAMPLES_PER_STEP for number in ranks):
        raise click.BadParameter(f"give 1 to {SAMPLES_PER_STEP} ranks: a step has so many samples")
    return ranks


@click.command("balancer")
@click.option("--ranks", default=RANKS, show_default=True, callback=read_ranks)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--steps", type=click.IntRange(1), default=3, show_default=True, help="Of a run.")
@click.option("--samples", type=click.IntRange(1), help="Of the source; else those of the steps.")
@click.option("--tcp", is_flag=True, help="Measure a process, over tcp, and its memory.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    ranks: list[int], rounds: int, steps: int, samples: int | None, tcp: bool, as_json: bool
) -> None:
    """Measure the balancer's CPU time a sample, planning counted, without sockets or over tcp.

    Workers (two a rank) and trainers answer at once, and have no data; microbatches of 16, 1,920
    samples a step. Counted is the second run of each balancer. With --tcp it is a `counterpoise
    balancer`, and the most memory of its process is told; sockets need `ulimit -n` of ten a rank.

    \b
    Examples:
      make bench NAME=balancer ARGS='--rounds 9 --json'
      make bench NAME=balancer ARGS='--tcp --ranks 1 --samples 1200000'
    """  # noqa: D301
    count = max(samples or 0, steps * SAMPLES_PER_STEP)
    us: dict[int, list[float]] = {number: [] for number in ranks}
    most: dict[int, list[int]] = {number: [] for number in ranks}
    with Progress(console=progress_console, transient=True) as progress:
        task = progress.add_task("balancers", total=len(us) * rounds)
        for _ in range(rounds):
            for number in us:
                if tcp:
                    with open_served(number, steps, count) as served:
                        us[number].append(served.run())
                        most[number].append(served.most_bytes())
                else:
                    us[number].append(Driven(number, steps, count).run())
                progress.advance(task)
    report = {
        "way": "tcp" if tcp else "in process",
        "samples": count,
        "steps": steps,
        "rounds": rounds,
        "cells": [_cell(number, us[number], most[number]) for number in us],
        "load_average": os.getloadavg()[0],
    }
    emit(report, as_json, _table(report))


def _cell(ranks: int, us: Sequence[float], most: Sequence[int]) -> dict[str, Any]:
    cell: dict[str, Any] = {"ranks": ranks, "us_per_sample": spread(us)}
    return {**cell, "most_mb": round(max(most) / 1e6, 1)} if most else cell


def _table(report: dict[str, Any]) -> Table:
    columns = ["ranks", "us a sample", *(["most memory, MB"] if report["way"] == "tcp" else [])]
    table = make_table("the balancer's CPU time, medians (range)", *columns)
    for cell in report["cells"]:
        us = cell["us_per_sample"]
        shown = f"{us['median']:.0f} ({us['low']:.0f} to {us['high']:.0f})"
        memory = [f"{cell['most_mb']:.0f}"] if "most_mb" in cell else []
        table.add_row(f"{cell['ranks']:,}", shown, *memory)
    return table
