"""`counterpoise bench start`: times the first batch of the first loader of a process.

Each figure is of a new process that has imported torch and counterpoise: from the constructor's
call until the first batch is there. torch's loader, ours without balancing and ours with take
turns. A balanced loader's balancer imports numba, so that is timed too, in a process of its own.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import click
import torch
from rich.table import Table
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset

from ....balancer import Balance
from ....loader import DataLoader
from ....workers.processes.clean_interpreter import clean_command
from ...console.reporting import emit

KINDS = ("torch", "plain", "balanced", "import numba")
SAMPLES, FEATURES = 1024, 64


def run_trial(kind: str, workers: int, batch_size: int) -> None:
    """Take the first batch, or import numba, and print the milliseconds that it took."""
    data = TensorDataset(torch.arange(SAMPLES * FEATURES).view(SAMPLES, FEATURES))
    torch.ones(300, 300) @ torch.ones(300, 300)
    begin = time.perf_counter()
    if kind == "import numba":
        import numba  # noqa: F401
    elif kind == "torch":
        batches: Iterator[Any] = iter(TorchDataLoader(data, batch_size, num_workers=workers))
        next(batches)
    else:
        balance = Balance(grouping="fixed") if kind == "balanced" else None
        ours = DataLoader(data, batch_size, shuffle=False, num_workers=workers, balance=balance)
        batches = iter(ours)
        next(batches)
    sys.stdout.write(f"{1000 * (time.perf_counter() - begin)}\n")


@click.command("start", epilog="Example: counterpoise bench start --repeats 10 --json")
@click.option("--repeats", default=10, show_default=True, help="Processes of each kind.")
@click.option("--workers", default=2, show_default=True)
@click.option("--batch-size", default=32, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(repeats: int, workers: int, batch_size: int, as_json: bool) -> None:
    """Time the first batch of a process against torch's DataLoader; num_workers=2."""
    if repeats < 1 or workers < 1:
        raise ValueError(f"got {repeats} repeats, {workers} workers: give at least 1 of each")
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(repeats):
        for kind in KINDS:
            times[kind].append(_time_trial(kind, workers, batch_size))
    kinds = {kind: _figures(times[kind], times["torch"]) for kind in KINDS}
    report = {"repeats": repeats, "workers": workers, "batch_size": batch_size, "kinds": kinds}
    emit(report, as_json, _as_table(kinds))


def _time_trial(kind: str, workers: int, batch_size: int) -> float:
    call = f"m.run_trial({kind!r}, {workers}, {batch_size})"
    done = subprocess.run(
        clean_command(__name__, call), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"the trial of {kind!r} failed: {done.stderr.strip()[-1000:]}")
    return float(done.stdout)


def _figures(mine: list[float], torchs: list[float]) -> dict[str, object]:
    """Return the figures of a kind's milliseconds, against torch's of the same turns."""
    ratios = [each / other for each, other in zip(mine, torchs, strict=True)]
    return {
        "milliseconds": round(median(mine), 1),
        "milliseconds_range": [round(min(mine), 1), round(max(mine), 1)],
        "over_torch": round(median(ratios), 3),
        "over_torch_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "more_than_twice_torch_ms": round(median(mine) - 2 * median(torchs), 1),
    }


def _as_table(kinds: dict[str, dict[str, object]]) -> Table:
    table = Table("first batch", "ms", "range", "over torch", "range", "ms above 2 x torch")
    for kind, figures in kinds.items():
        table.add_row(kind, *map(str, figures.values()))
    return table
