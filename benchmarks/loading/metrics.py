"""`make bench NAME=metrics`: what counting costs a trainer, and what it costs off.

A balanced loop of small samples whose costs differ and are known, and torch's way with the same
samples. Loaders that count and that do not take turns in one process, in a new order each round; a
second one that does not count says how far two alike are apart.
"""

import os
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np

from counterpoise.tools.console.reporting import emit, make_table, spread

# Microbatches of a step; samples differ, so that budgets need some room beyond the mean.
ACCUMULATE, ROOM = 4, 1.4
MEDIAN_TOKENS, SPREAD, TOKENS, TILES = 300, 0.6, (16, 1500), 5
TILE_SIZE = 8
KINDS = ("off", "off again", "on")
# A training step that computes for so long is a quick one.
STEP_S = 0.1


@dataclass(frozen=True, slots=True)
class SmallLoop:
    """Samples of a microbatch on average, of an epoch, and workers."""

    microbatch: int
    samples: int
    workers: int


class SmallSamples:
    """Samples of a few hundred tokens and a few tiny tiles; their numbers follow from a seed."""

    def __init__(self, count: int) -> None:
        draw = np.random.default_rng(0)
        drawn = MEDIAN_TOKENS * draw.lognormal(0, SPREAD, count)
        self.tokens = drawn.clip(*TOKENS).astype(np.int64)
        self.tiles = draw.integers(0, TILES + 1, count)
        self._ids = np.arange(TOKENS[1], dtype=np.int32)
        self._pixels = np.zeros((TILES, 3, TILE_SIZE, TILE_SIZE), np.uint8)
        # No image, or one with so many tiles.
        self._images = [np.array([n] if n else [], np.int32) for n in range(TILES + 1)]

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


@dataclass(frozen=True, slots=True)
class CountingCost:
    """Trainer CPU microseconds a microbatch by kind, medians and ranges; all without training.

    added: on less off, the median of rounds; apart: off again less off; share: added, of a step of
    STEP_S and its microbatches.
    """

    loop: str
    microbatch: int
    off: dict[str, float]
    on: dict[str, float]
    added: float
    apart: float
    share: float


def loaders(loop: str, cell: SmallLoop) -> dict[str, Any]:
    """Return a loader of each kind."""
    from counterpoise.loader import Balance, DataLoader

    samples = SmallSamples(cell.samples)
    given: dict[str, Any] = {"batch_size": cell.microbatch, "collate_fn": _first}
    if loop == "balanced":
        costs = {"tiles": samples.tiles, "tokens": samples.tokens}
        most = ROOM * cell.microbatch
        balance = Balance(
            budgets={name: int(most * each.mean()) for name, each in costs.items()},
            samples_per_step=ACCUMULATE * cell.microbatch, accumulate=ACCUMULATE, layout="packed",
        )  # fmt: skip
        given = {"balance": balance, "cost": costs, "shuffle": True}
    return {
        kind: DataLoader(
            samples, num_workers=cell.workers, persistent_workers=True, keep_stats=kind == "on",
            **given,
        )
        for kind in KINDS
    }  # fmt: skip


def _first(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a collate function of fixed sizes would: arrays of one sample."""
    return samples[0]


def measure(loop: str, cell: SmallLoop, rounds: int) -> CountingCost:
    """Return what counting costs a microbatch of a loop."""
    made = loaders(loop, cell)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds + 1):  # the first has the start of everything
        turn = number % len(KINDS)
        for kind in KINDS[turn:] + KINDS[:turn]:
            found[kind].append(_cpu_us(made[kind]))
    for each in made.values():
        each.close()
    return _cost(loop, cell, found)


def _cost(loop: str, cell: SmallLoop, found: dict[str, list[float]]) -> CountingCost:
    off, again, on = (found[kind][1:] for kind in KINDS)
    added = statistics.median(a - b for a, b in zip(on, off, strict=True))
    return CountingCost(
        loop, cell.microbatch, spread(off), spread(on), added,
        statistics.median(a - b for a, b in zip(again, off, strict=True)),
        added * ACCUMULATE / (1e6 * STEP_S),
    )  # fmt: skip


def _cpu_us(loader: Any) -> float:
    """Return the CPU microseconds of this process for a microbatch, of an epoch after its first."""
    batches = iter(loader)
    next(batches)
    begun, count = time.process_time(), 0
    for _ in batches:
        count += 1
    return 1e6 * (time.process_time() - begun) / max(1, count)


@click.command("metrics")
@click.option("--microbatch", type=click.IntRange(8), default=16, show_default=True)
@click.option("--samples", type=click.IntRange(1), default=12_800, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(microbatch: int, samples: int, workers: int, rounds: int, as_json: bool) -> None:
    """Measure what counting costs a trainer.

    \b
    Example:
      make bench NAME=metrics ARGS='--rounds 9 --json'
    """  # noqa: D301
    cell = SmallLoop(microbatch, samples, workers)
    found = [measure(loop, cell, rounds) for loop in ("plain", "balanced")]
    title = "trainer CPU microseconds a microbatch, without training: medians (range)"
    columns = ("loop", "off", "off again less off", "on less off", f"of a step of {STEP_S:g} s")
    table = make_table(title, *columns)
    for each in found:
        off = f"{each.off['median']:.1f} ({each.off['low']:.1f} to {each.off['high']:.1f})"
        share = f"{100 * each.share:.3f} %"
        table.add_row(each.loop, off, f"{each.apart:+.1f}", f"{each.added:+.1f}", share)
    cells = [asdict(each) for each in found]
    emit({"cells": cells, "load_average": os.getloadavg()[0]}, as_json, table)
