"""`make bench NAME=fields`: bytes and CPU time of batches by what a rank needs of them.

One worker has samples of pixels and tokens, packed. A process that gets whole batches is compared
with those that get what a part of a job needs: stages of a pipeline with an encoder in its bubbles,
whose images are dealt to its ranks, and ranks of units. They take turns.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import torch
from rich.table import Table

from counterpoise.balancer import Balance
from counterpoise.loader import DataLoader
from counterpoise.tools.console.reporting import emit, spread
from counterpoise.workers.arena.transport import Transport

RANKS, ENCODERS = 4, 2
TEXTS, PIXELS = {"input_ids", "position_ids"}, {"pixel_values", "tiles_per_image"}
Needs = Callable[[Any], set[str]]


def dealt(texts: set[str], at: int, ranks: int) -> Needs:
    """Return what a rank needs that encodes every microbatch of its turn.

    >>> from types import SimpleNamespace
    >>> needs = dealt({"labels"}, at=1, ranks=2)
    >>> [sorted(needs(SimpleNamespace(microbatch=number))) for number in (0, 1)]
    [['labels'], ['labels', 'pixel_values', 'tiles_per_image']]
    """
    return lambda info: texts | (PIXELS if info.microbatch % ranks == at else set())


PARTS: dict[str, Needs | None] = {
    "whole batches": None,
    "first of 4 stages, encodes": dealt(TEXTS, 0, RANKS),
    "stage between, encodes": dealt(set(), 1, RANKS),
    "last of 4 stages, encodes": dealt({"labels"}, RANKS - 1, RANKS),
    "units: first stage": lambda _: TEXTS,
    "units: last stage": lambda _: {"labels"},
    "units: one of 2 encoders": dealt(set(), 0, ENCODERS),
}


class Pictured:
    """Samples of some tiles and tokens."""

    def __init__(self, count: int, tiles: int, tokens: int, side: int) -> None:
        self._count, self._tiles = count, np.full((tiles, 3, side, side), 7, np.uint8)
        self._text = np.arange(tokens)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        owners = np.array([len(self._tiles)])
        texts = {"input_ids": self._text, "labels": self._text}
        return {**texts, "pixel_values": self._tiles, "tiles_per_image": owners}


@click.command("fields")
@click.option("--tiles", type=click.IntRange(1), default=4, show_default=True, help="Of a sample.")
@click.option("--tokens", type=click.IntRange(1), default=1200, show_default=True)
@click.option("--side", type=click.IntRange(1), default=448, show_default=True, help="Pixels.")
@click.option("--microbatches", type=click.IntRange(4), default=8, show_default=True)
@click.option("--steps", type=click.IntRange(2), default=6, show_default=True, help="Of a pass.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--inline", is_flag=True, help="Samples through the balancer, not pulled.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    tiles: int,
    tokens: int,
    side: int,
    microbatches: int,
    steps: int,
    rounds: int,
    inline: bool,
    as_json: bool,
) -> None:
    """Show bytes and CPU time of a step's batches: whole, and what each rank needs.

    \b
    Examples:
      make bench NAME=fields
      make bench NAME=fields ARGS='--tiles 12 --microbatches 16 --json'
    """  # noqa: D301
    data = Pictured(2 * microbatches * steps, tiles, tokens, side)
    way: Transport = "inline" if inline else "auto"
    loaders = {name: _loader(data, microbatches, needs, way) for name, needs in PARTS.items()}
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in PARTS}
    try:
        for number in range(rounds + 1):
            for name, loader in loaders.items():
                measured = _pass(loader)
                if number:  # the first pass starts workers
                    found[name].append(measured)
    finally:
        for loader in loaders.values():
            loader.close()
    report = {
        "load_average": os.getloadavg()[0],
        "parts": {
            name: {"bytes": passes[0][0], "cpu_ms": spread([ms for _, ms in passes])}
            for name, passes in found.items()
        },
    }
    emit(report, as_json, _table(report))


def _loader(
    data: Pictured, microbatches: int, needs: Needs | None, transport: Transport
) -> DataLoader[Any, Any]:
    return DataLoader(
        data,
        batch_size=2,
        shuffle=False,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",
        balance=Balance("fixed", layout="packed", accumulate=microbatches),
        cost={"tokens": [1] * len(data)},
        fields=needs,
        transport=transport,
    )


def _pass(loader: DataLoader[Any, Any]) -> tuple[int, float]:
    """Return the bytes of a step's batches, and the process' CPU milliseconds for them."""
    steps = loader.steps()
    next(steps)  # what begins a pass is not counted
    begun, nbytes, count = time.process_time(), 0, 0
    for step in steps:
        nbytes, count = nbytes + sum(map(_size, step.microbatches)), count + 1
    return nbytes // count, 1000 * (time.process_time() - begun) / count


def _size(batch: Any) -> int:
    return sum(each.nbytes for each in batch.values() if isinstance(each, torch.Tensor))


def _table(report: dict[str, Any]) -> Table:
    made = Table("rank", "MB a step", "CPU ms a step (range)", title="fields that a rank needs")
    for name, part in report["parts"].items():
        ms = part["cpu_ms"]
        times = f"{ms['median']:.1f} ({ms['low']:.1f} to {ms['high']:.1f})"
        made.add_row(name, f"{part['bytes'] / 1e6:.2f}", times)
    return made
