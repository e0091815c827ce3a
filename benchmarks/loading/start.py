"""`make bench NAME=start`: times the first batch of a process, and of each epoch after it.

Each figure is of new processes that have imported torch and counterpoise: from the constructor's
call until the first batch is there, and from later calls of iter(), with workers that start anew
and with workers that stay. torch's loader, ours without balancing and ours with take turns (with
--load-ms the last is balance="auto", whose costs only loading shows). All keep the bytecode of
modules, as installed packages have it, and a first trial of each is not counted.
"""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import click
import torch
from rich.table import Table
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader as TorchDataLoader, TensorDataset

from counterpoise.balancer import Balance
from counterpoise.loader import DataLoader
from counterpoise.tools.console.reporting import emit
from counterpoise.workers.processes.clean_interpreter import clean_command

from .. import rounded_spread

LOADERS = ("torch", "plain", "balanced")
SLOW_LOADERS = ("torch", "plain", "auto")
SAMPLES, FEATURES = 1024, 64


@dataclass(frozen=True)
class Texts:
    """Token ids of many lengths, which take `load_s` seconds to load."""

    load_s: float

    def __len__(self) -> int:
        return SAMPLES // 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.load_s)
        return torch.arange(5 + index * 7919 % 300)


def run_trial(
    kind: str, workers: int, batch_size: int, stay: bool, epochs: int, load_ms: float = 0.0
) -> None:
    """Print, as JSON, the milliseconds until the first batch, and the median of later epochs'.

    stay: whether the workers do, between epochs.
    """
    named: dict[str, Any] = {"num_workers": workers, "persistent_workers": stay}
    data: Any = TensorDataset(torch.arange(SAMPLES * FEATURES).view(SAMPLES, FEATURES))
    if load_ms:
        data, named["collate_fn"] = Texts(load_ms / 1000), partial(pad_sequence, batch_first=True)
    torch.ones(300, 300) @ torch.ones(300, 300)
    gc.collect()  # what importing torch has left: a trainer has collected it by then
    begin = time.perf_counter()
    loader = _loader(kind, data, batch_size, **named)
    first = _first_batch_s(loader, begin)
    later = [_first_batch_s(loader, time.perf_counter()) for _ in range(epochs)]
    found = {"first": 1000 * first, "later": 1000 * median(later)}
    sys.stdout.write(json.dumps(found) + "\n")


def _loader(kind: str, data: Any, batch_size: int, **named: Any) -> Any:
    if kind == "torch":
        return TorchDataLoader(data, batch_size, **named)
    balance = Balance(grouping="fixed") if kind == "balanced" else None
    if kind == "auto":
        balance = Balance("auto")
    return DataLoader(data, batch_size, shuffle=False, balance=balance, **named)


def _first_batch_s(loader: Any, begin: float) -> float:
    """Run an epoch; return the seconds from `begin` until its first batch was there."""
    batches: Iterator[Any] = iter(loader)
    next(batches)
    took = time.perf_counter() - begin
    for _ in batches:
        pass
    return took


@click.command("start", epilog="Example: make bench NAME=start ARGS='--repeats 10 --json'")
@click.option("--repeats", default=10, show_default=True, help="Processes of each kind.")
@click.option("--workers", default=2, show_default=True)
@click.option("--batch-size", default=32, show_default=True)
@click.option("--epochs", default=5, show_default=True, help="Epochs after the first of each.")
@click.option(
    "--load-ms", default=0.0, help='Samples take so long, and balance="auto" has to measure them.'
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    repeats: int, workers: int, batch_size: int, epochs: int, load_ms: float, as_json: bool
) -> None:
    """Time the first batch of processes and epochs against torch's DataLoader; num_workers=2."""
    loaders = SLOW_LOADERS if load_ms else LOADERS
    if min(repeats, workers, epochs) < 1:
        raise ValueError(
            f"got {repeats} repeats, {workers} workers, {epochs} epochs: give at least 1 of each"
        )
    first: dict[str, list[float]] = {kind: [] for kind in loaders}
    later = {stay: {kind: list[float]() for kind in loaders} for stay in (False, True)}
    for kind in loaders:  # compiles what has no bytecode yet
        _time_trial(kind, workers, batch_size, False, epochs, load_ms)
    for _ in range(repeats):
        for kind in loaders:
            for stay, times in later.items():
                found = _time_trial(kind, workers, batch_size, stay, epochs, load_ms)
                times[kind].append(found["later"])
                if not stay:
                    first[kind].append(found["first"])
    report = {
        "repeats": repeats,
        "workers": workers,
        "batch_size": batch_size,
        "epochs": epochs,
        "load_ms": load_ms,
        "kinds": _compared(first),
        "later_epochs": {
            "new_workers": _compared(later[False]),
            "persistent_workers": _compared(later[True]),
        },
    }
    emit(report, as_json, _as_table(report))


def _time_trial(
    kind: str, workers: int, batch_size: int, stay: bool, epochs: int, load_ms: float
) -> dict[str, float]:
    call = f"m.run_trial({kind!r}, {workers}, {batch_size}, {stay}, {epochs}, {load_ms})"
    done = subprocess.run(
        clean_command(__name__, call),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": ""},
    )
    if done.returncode != 0:
        raise RuntimeError(f"the trial of {kind!r} failed: {done.stderr.strip()[-1000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _compared(times: dict[str, list[float]]) -> dict[str, dict[str, object]]:
    return {kind: _figures(mine, times["torch"]) for kind, mine in times.items()}


def _figures(mine: list[float], torchs: list[float]) -> dict[str, object]:
    """Return the figures of a kind's milliseconds, against torch's of the same turns."""
    ratios = [each / other for each, other in zip(mine, torchs, strict=True)]
    return {
        "milliseconds": round(median(mine), 1),
        "milliseconds_range": rounded_spread(mine, 1)[1:],
        "over_torch": round(median(ratios), 3),
        "over_torch_range": rounded_spread(ratios, 3)[1:],
        "more_than_twice_torch_ms": round(median(mine) - 2 * median(torchs), 1),
    }


def _as_table(report: dict[str, Any]) -> Table:
    table = Table("first batch", "ms", "range", "over torch", "range")
    later = report["later_epochs"]
    titles = {
        "of a process": report["kinds"],
        "later, new workers": later["new_workers"],
        "later, persistent": later["persistent_workers"],
    }
    for title, kinds in titles.items():
        table.add_row(f"[bold]{title}[/]")
        for kind, found in kinds.items():
            (least, most), (low, high) = found["milliseconds_range"], found["over_torch_range"]
            table.add_row(
                kind, f"{found['milliseconds']:.1f}", f"{least:.1f} to {most:.1f}",
                f"{found['over_torch']:.2f}", f"{low:.2f} to {high:.2f}",
            )  # fmt: skip
        table.add_section()
    return table
