"""`counterpoise bench loader`: measures our DataLoader and torch's on the same cores.

They take turns in one process, each with new workers, over the same samples, resizer and batches;
all make their batches in the workers. A round's ratio is ours / torch's samples per second.
"""

import os
from typing import Any

import click
import numpy as np
import torch
from rich.progress import Progress
from rich.table import Table
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset

from ...loader import Balance, DataLoader, collate_packed
from ...workers import TarDataset, VisionLanguage
from ..console.reporting import emit, make_table, progress_console
from ..demo.data import ensure_demo_data
from .turns import TORCH, Contender, compare, figures, take_turns

SYSTEMS = (TORCH, "ours", "balanced")
# A turn lasts about so long.
TURN_S = 2.0


@click.command("loader")
@click.option("--data", metavar="PATTERN", help="Tar shards; default: the demo's own data.")
@click.option("--workers", type=int, multiple=True, default=(1, 2), show_default=True)
@click.option("--pairs", type=click.IntRange(1), default=10, show_default=True)
@click.option("--samples", type=click.IntRange(8), default=128, show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=8, show_default=True)
@click.option("--tile-size", type=click.IntRange(16), default=448, show_default=True)
@click.option("--cores", help="Cores to pin to, such as 0,1; default: all that are allowed.")
@click.option("--prefetch", type=click.IntRange(1), default=4, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    data: str | None, workers: tuple[int, ...], pairs: int, samples: int, batch_size: int,
    tile_size: int, cores: str | None, prefetch: int, as_json: bool,
) -> None:  # fmt: skip
    """Compare samples per second with torch's DataLoader on the same cores.

    \b
    Example:
      counterpoise bench loader --data '/data/*.tar' --workers 1 --workers 2 --json
    """  # noqa: D301
    pattern, pinned = data or ensure_demo_data(), parse_cores(cores)
    os.sched_setaffinity(0, pinned)
    torch.set_num_threads(1)
    dataset = spread_over(pattern, samples, tile_size)
    found: dict[str, Any] = {}
    with Progress(console=progress_console, transient=True) as progress:
        task = progress.add_task("turns", total=len(workers) * pairs * len(SYSTEMS))
        for count in workers:
            given = {"batch_size": batch_size, "num_workers": count, "prefetch_factor": prefetch}
            contenders = contenders_of(dataset, given)
            take_turns(
                contenders, batch_size, count, TURN_S * pairs * len(SYSTEMS),
                lambda _: progress.advance(task), least=pairs, most=pairs,
            )  # fmt: skip
            found[str(count)] = _compared(contenders, batch_size)
    settings = {
        "pattern": pattern, "samples": samples, "cores": pinned, "batch_size": batch_size,
        "tile_size": tile_size, "prefetch": prefetch,
    }  # fmt: skip
    report = {"settings": settings, "workers": found, "load_average": os.getloadavg()[0]}
    emit(report, as_json, _table(report))


def parse_cores(text: str | None) -> tuple[int, ...]:
    """Return the cores of a text such as "0,1", all that are allowed for None; else ValueError."""
    allowed = os.sched_getaffinity(0)
    if text is None:
        return tuple(sorted(allowed))
    try:
        cores = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--cores got {text!r}; give numbers such as 0,1") from error
    if not set(cores) <= allowed:
        raise ValueError(f"--cores got {text}; allowed on this machine are {sorted(allowed)}")
    return cores


def spread_over(pattern: str, count: int, tile_size: int) -> "Subset[Any]":
    """Return `count` samples, spread evenly over some shards; ValueError if there are fewer."""
    whole = TarDataset(pattern, VisionLanguage(tile_size=tile_size))
    if len(whole) < count:
        raise ValueError(f"{pattern} has {len(whole)} samples: give --samples {len(whole)}")
    return Subset(whole, (np.arange(count) * len(whole) // count).tolist())  # type: ignore[arg-type]


def contenders_of(dataset: Any, given: dict[str, Any]) -> list[Contender]:
    """Return the loaders that take turns."""
    balance = Balance(grouping="fixed", layout="packed")
    makers = {
        TORCH: lambda _: TorchDataLoader(dataset, collate_fn=collate_packed, **given),
        "ours": lambda _: DataLoader(dataset, collate_fn=collate_packed, **given),
        "balanced": lambda _: DataLoader(dataset, shuffle=True, balance=balance, **given),
    }
    return [Contender(name, makers[name], skips=True) for name in SYSTEMS]


def _compared(contenders: list[Contender], batch_size: int) -> dict[str, Any]:
    """Return each loader's figures; RuntimeError for one that failed."""
    report: dict[str, Any] = {}
    for one in contenders:
        if one.failed:
            raise RuntimeError(f"{one.name}: {one.failed}")
        cpu_us = 1e6 * one.median("cpu_s") / batch_size
        report[one.name] = {
            "samples_per_s": figures(one)["samples_per_s"],
            "trainer_cpu_us_per_sample": cpu_us,
            "ratio": compare(one, contenders[0]),
        }
    return report


def _table(report: dict[str, Any]) -> Table:
    title = "samples per second against torch's DataLoader (ratio of each pair)"
    table = make_table(title, "system", "workers", "samples/s", "ratio", "range", "trainer us")
    table.caption = "trainer us: its CPU microseconds a sample"
    for count, systems in report["workers"].items():
        for name, found in systems.items():
            ratio = found["ratio"]
            table.add_row(
                name,
                count,
                f"{found['samples_per_s']['median']:.1f}",
                f"{ratio['median']:.2f}",
                f"{ratio['low']:.2f} to {ratio['high']:.2f}" if name != TORCH else "",
                f"{found['trainer_cpu_us_per_sample']:.0f}",
            )
    return table
