"""`make bench NAME=local`: balanced loops with known costs, against our own plain loop.

Both have the same tensors, copied in two workers that stay. Each has a process of its own, and they
take turns.
"""

import time
from multiprocessing.connection import Connection as Pipe
from typing import Any

import click
import numpy as np
import torch
from torch.utils.data import Dataset

import counterpoise as cp
from counterpoise.tools.console.reporting import emit, make_table, spread

from .processes import MeasuredProcess

# Bytes of a sample, samples of a microbatch, and of an epoch.
CELLS = {
    "1024x16": (1024, 16, 20_000), "1024x32": (1024, 32, 30_000), "150000x32": (150_000, 32, 4_000),
    "602112x32": (602_112, 32, 1_500),
}  # fmt: skip
KINDS = ("balanced", "plain")
ACCUMULATE, WORKERS = 4, 2


class Tensors(Dataset[Any]):
    """Tensors of a size."""

    def __init__(self, count: int, nbytes: int) -> None:
        self.count, self.whole = count, torch.zeros(nbytes, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.whole.clone(), index


def loader_of(kind: str, nbytes: int, size: int, count: int) -> Any:
    """Return a loader of a kind; costs are lognormal, as of the tokens of instructions."""
    given: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True, "shuffle": True}
    data = Tensors(count, nbytes)
    if kind == "plain":
        return cp.DataLoader(data, size, **given)
    drawn = np.random.default_rng(0).lognormal(5.5, 0.8, count)
    costs = {"tokens": np.clip(drawn.astype(int), 16, 1500)}
    balance = cp.Balance(accumulate=ACCUMULATE, samples_per_step=ACCUMULATE * size)
    return cp.DataLoader(data, balance=balance, cost=costs, **given)


def _serve(pipe: "Pipe[Any, Any]", kind: str, nbytes: int, size: int, count: int) -> None:
    """Send the samples a second of an epoch each time something arrives."""
    torch.set_num_threads(1)
    loader = loader_of(kind, nbytes, size, count)
    try:
        while pipe.recv():
            since = time.perf_counter()
            for _ in loader:
                pass
            pipe.send(count / (time.perf_counter() - since))
    finally:
        loader.close()


def compare(cell: tuple[int, int, int], rounds: int) -> dict[str, dict[str, float]]:
    """Return a cell's samples a second of each kind, and the ratio of each round."""
    parties = {kind: MeasuredProcess(_serve, kind, *cell) for kind in KINDS}
    try:
        # the first two rounds start what stays, and measure
        passes = [
            {kind: each.ask("go") for kind, each in parties.items()} for _ in range(rounds + 2)
        ]
    finally:
        for each in parties.values():
            each.close()
    rates = {kind: [one[kind] for one in passes[2:]] for kind in KINDS}
    ratios = [a / b for a, b in zip(*rates.values(), strict=True)]
    return {**{kind: spread(each) for kind, each in rates.items()}, "of_plain": spread(ratios)}


@click.command("local", epilog="Example: make bench NAME=local ARGS='--rounds 10 --json'")
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True)
@click.option("--cell", "chosen", type=click.Choice(list(CELLS)), multiple=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(rounds: int, chosen: tuple[str, ...], as_json: bool) -> None:
    """Compare balanced loops with our plain loop on the same data."""
    report = {name: compare(CELLS[name], rounds) for name in chosen or CELLS}
    table = make_table(
        "balanced over plain, samples/s", "bytes x samples", "ratio", "range", *KINDS
    )
    for name, found in report.items():
        ratio, rates = found["of_plain"], (f"{found[kind]['median']:,.0f}" for kind in KINDS)
        span = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
        table.add_row(name, f"{ratio['median']:.2f}", span, *rates)
    emit({"cells": report}, as_json, table)
