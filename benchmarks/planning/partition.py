"""`make bench NAME=partition`: compares ways to assign a global batch's samples to ranks."""

import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from rich.table import Table

from counterpoise.balancer.planning.kernels.arrays import Int64
from counterpoise.balancer.planning.partition.greedy import ascending, greedy
from counterpoise.balancer.planning.partition.karmarkar_karp import karmarkar_karp
from counterpoise.balancer.planning.partition.multi_resource import multi_resource
from counterpoise.balancer.planning.problem.loads import group_loads
from counterpoise.balancer.planning.problem.metrics import TILE_TOKENS
from counterpoise.balancer.planning.problem.shuffle import permutation
from counterpoise.tools.console.reporting import emit

from .costs import read_costs

# Attention adds tokens**2 / ATTENTION token equivalents; in these units everything is whole.
ATTENTION = 24_576

Partition = Callable[[Int64, int, int], Int64]

STRATEGIES: dict[str, Partition] = {
    "random": lambda work, ranks, seed: permutation(len(work), seed, 0) % ranks,
    "ascending": lambda work, ranks, _: ascending(work.sum(axis=1), ranks),
    "greedy": lambda work, ranks, _: greedy(work.sum(axis=1), ranks),
    "karmarkar_karp": lambda work, ranks, _: karmarkar_karp(work.sum(axis=1), ranks),
    "karmarkar_karp_equal": lambda work, ranks, _: karmarkar_karp(
        work.sum(axis=1), ranks, equal=True
    ),
    "multi_resource": lambda work, ranks, _: multi_resource(work, ranks),
    "multi_resource_equal": lambda work, ranks, _: multi_resource(work, ranks, equal=True),
}


@click.command(
    "partition",
    epilog="Example: make bench NAME=partition ARGS='--samples 1920 --ranks 32 --json'",
)
@click.option("--costs", type=click.Path(path_type=Path), help="npz file: tiles and tokens.")
@click.option("--samples", default=1920, show_default=True, help="Samples of a global batch.")
@click.option("--ranks", default=32, show_default=True)
@click.option("--draws", default=10, show_default=True, help="Random batches to average over.")
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    costs: Path | None, samples: int, ranks: int, draws: int, seed: int, as_json: bool
) -> None:
    """Compare ways to assign a global batch's samples to ranks."""
    table = read_costs(costs, ("tiles", "tokens"), 100_000, seed)
    work = _work(table.column("tiles"), table.column("tokens"))
    report = _compare(work, samples, ranks, draws, seed)
    emit(report, as_json, _as_table(report))


def _work(tiles: Int64, tokens: Int64) -> Int64:
    """Return encoder and LLM work (n, 2) in 1/24576 tokens: 307 a tile, t + t**2/24576."""
    return np.stack([TILE_TOKENS * tiles * ATTENTION, tokens * ATTENTION + tokens**2], axis=1)


def _compare(work: Int64, samples: int, ranks: int, draws: int, seed: int) -> dict[str, object]:
    if samples > len(work):
        raise ValueError(f"{samples} samples asked for, the costs hold {len(work)}; ask for fewer")
    found: dict[str, list[list[float]]] = {name: [] for name in STRATEGIES}
    for draw in range(draws):
        some = np.ascontiguousarray(work[permutation(len(work), seed, draw)[:samples]])
        for name, partition in STRATEGIES.items():
            begin = time.process_time()
            part_of = partition(some, ranks, seed + draw)
            taken = (time.process_time() - begin) * 1000
            found[name].append([*_excess(some, part_of, ranks), taken])
    strategies = {name: _entry(np.mean(rows, axis=0).tolist()) for name, rows in found.items()}
    return {
        "samples": samples,
        "ranks": ranks,
        "draws": draws,
        "strategies": strategies,
    }


def _excess(work: Int64, part_of: Int64, ranks: int) -> list[float]:
    """Return max / mean - 1 of encoder, LLM and the sum of both maxima; then the count spread."""
    loads = group_loads(work, part_of, ranks)
    top, mean = loads.max(axis=0), loads.mean(axis=0)
    count = np.bincount(part_of, minlength=ranks)
    each = (top / np.maximum(mean, 1) - 1).tolist()
    whole = float(top.sum() / max(1.0, mean.sum()) - 1)
    return [*each, whole, float(count.max() - count.min())]


def _entry(values: list[float]) -> dict[str, object]:
    tiles, tokens, whole, counts, taken = values
    return {
        "excess": {"tiles": tiles, "tokens": tokens, "stage_sum": whole},
        "count_spread": counts,
        "milliseconds": taken,
    }


def _as_table(report: dict[str, object]) -> Table:
    shown = Table(title=f"{report['samples']} samples onto {report['ranks']} ranks")
    for column in ("strategy", "tiles", "tokens", "stage sum", "count spread", "CPU ms"):
        shown.add_column(column, justify="left" if column == "strategy" else "right")
    strategies = report["strategies"]
    if isinstance(strategies, dict):
        for name, one in strategies.items():
            excess = [f"{value:.4f}" for value in one["excess"].values()]
            shown.add_row(name, *excess, f"{one['count_spread']:.1f}", f"{one['milliseconds']:.1f}")
    return shown
