"""`counterpoise bench loader`: measures our DataLoader and torch's on the same cores.

Each system runs in a process tree of its own, pinned to the same cores, with the same dataset,
batches and number of workers, and the same collate function, run in the workers. Passes alternate
(ours, torch's, torch's, ours, ...), so that other load on the machine falls on both; a pair's ratio
is ours / torch's samples per second. The first pass of each, with the start of its workers, is not
counted.
"""

import itertools
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any

import click
from rich.progress import Progress
from rich.table import Table

from ..console.reporting import emit, progress_console
from ..console.spread import spread
from ..demo.data import ensure_demo_data
from .processes import MeasuredProcess

SYSTEMS = ("ours", "torch", "balanced")


@dataclass(frozen=True, slots=True)
class LoaderBenchSettings:
    """The work of both systems: `samples` per pass in batches, on these cores."""

    pattern: str
    samples: int
    batch_size: int
    tile_size: int
    cores: tuple[int, ...]
    prefetch: int


@dataclass(frozen=True, slots=True)
class LoaderPass:
    """One pass: samples per second, and the trainer's own CPU microseconds per sample."""

    rate: float
    cpu_us: float


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
    data: str | None,
    workers: tuple[int, ...],
    pairs: int,
    samples: int,
    batch_size: int,
    tile_size: int,
    cores: str | None,
    prefetch: int,
    as_json: bool,
) -> None:
    """Compare samples per second with torch's DataLoader on the same cores.

    \b
    Example:
      counterpoise bench loader --data '/data/*.tar' --workers 1 --workers 2 --json
    """  # noqa: D301
    shape = (samples, batch_size, tile_size, parse_cores(cores), prefetch)
    settings = LoaderBenchSettings(data or ensure_demo_data(), *shape)
    passes: dict[int, dict[str, list[LoaderPass]]] = {}
    with Progress(console=progress_console, transient=True) as progress:
        task = progress.add_task("passes", total=len(workers) * len(SYSTEMS) * (pairs + 1))
        for count in workers:
            passes[count] = {name: [] for name in SYSTEMS}
            for name, measured in _measure(settings, count, pairs):
                progress.advance(task)
                if measured is not None:
                    passes[count][name].append(measured)
    report = _report(settings, passes)
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


def _measure(
    settings: LoaderBenchSettings, workers: int, pairs: int
) -> Iterator[tuple[str, LoaderPass | None]]:
    """Yield (system, pass) in turns; None for the first pass of each."""
    systems = {name: MeasuredProcess(_serve, name, settings, workers) for name in SYSTEMS}
    try:
        for name, system in systems.items():
            system.ask("run")
            yield name, None
        for pair in range(pairs):
            for name in SYSTEMS if pair % 2 == 0 else reversed(SYSTEMS):
                yield name, systems[name].ask("run")
    finally:
        for system in systems.values():
            system.close()


def _serve(pipe: "Pipe[Any, Any]", name: str, settings: LoaderBenchSettings, workers: int) -> None:
    os.sched_setaffinity(0, settings.cores)
    loader = None
    try:
        loader = _loader(name, settings, workers)
        while pipe.recv():
            pipe.send(_one_pass(loader))
    finally:
        if loader is not None and hasattr(loader, "close"):
            loader.close()


def _loader(name: str, settings: LoaderBenchSettings, workers: int) -> Any:
    import torch
    from torch.utils.data import DataLoader as TorchLoader
    from torch.utils.data import Subset

    from ...loader import Balance, DataLoader, collate_packed
    from ...workers import TarDataset, VisionLanguage

    torch.set_num_threads(1)
    dataset: Any = TarDataset(settings.pattern, VisionLanguage(tile_size=settings.tile_size))
    common: dict[str, Any] = {
        "batch_size": settings.batch_size,
        "num_workers": workers,
        "prefetch_factor": settings.prefetch,
        "persistent_workers": True,
    }
    if name == "balanced":
        return DataLoader(
            _FirstSamples(dataset, settings.samples),
            shuffle=False,
            balance=Balance(grouping="fixed", layout="packed"),
            **common,
        )
    kind = DataLoader if name == "ours" else TorchLoader
    subset = Subset(dataset, range(min(settings.samples, len(dataset))))
    return kind(subset, collate_fn=collate_packed, **common)


class _FirstSamples:
    """The first samples of a source, as a source."""

    def __init__(self, source: Any, count: int) -> None:
        self._source = source
        self._count = min(count, len(source))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._source[index]

    def __getattr__(self, name: str) -> Any:
        if name in ("key", "probe", "load", "fingerprint"):
            return getattr(self._source, name)
        raise AttributeError(name)


def _one_pass(loader: Any) -> LoaderPass:
    started, cpu, samples = time.perf_counter(), time.process_time(), 0
    for batch in loader:
        samples += len(batch["cu_seq_lens"]) - 1
    seconds = time.perf_counter() - started
    return LoaderPass(samples / seconds, 1e6 * (time.process_time() - cpu) / samples)


def _report(
    settings: LoaderBenchSettings, passes: dict[int, dict[str, list[LoaderPass]]]
) -> dict[str, Any]:
    by_workers = {str(count): _compared(systems) for count, systems in passes.items()}
    ratios = list(itertools.chain(*[_ratios(systems, "ours") for systems in passes.values()]))
    return {
        "settings": asdict(settings),
        "workers": by_workers,
        "ratio": spread(ratios),
        "load_average": os.getloadavg()[0],
    }


def _compared(systems: dict[str, list[LoaderPass]]) -> dict[str, Any]:
    return {
        "ratio": spread(_ratios(systems, "ours")),
        "ratio_balanced": spread(_ratios(systems, "balanced")),
        "samples_per_s": {
            name: statistics.median(each.rate for each in passes)
            for name, passes in systems.items()
        },
        "trainer_cpu_us_per_sample": {
            name: statistics.median(each.cpu_us for each in passes)
            for name, passes in systems.items()
        },
    }


def _ratios(systems: dict[str, list[LoaderPass]], name: str) -> list[float]:
    pairs = zip(systems[name], systems["torch"], strict=True)
    return [ours.rate / theirs.rate for ours, theirs in pairs]


def _table(report: dict[str, Any]) -> Table:
    table = Table(title="samples per second against torch's DataLoader (ratio of each pair)")
    for column in ("workers", "system", "samples/s", "ratio", "range", "trainer CPU us/sample"):
        table.add_column(column, justify="left" if column == "system" else "right")
    for count, figures in report["workers"].items():
        for name in SYSTEMS:
            ratio = {"ours": figures["ratio"], "balanced": figures["ratio_balanced"]}.get(name)
            table.add_row(
                count,
                name,
                f"{figures['samples_per_s'][name]:.1f}",
                f"{ratio['median']:.2f}" if ratio else "1",
                f"{ratio['low']:.2f} to {ratio['high']:.2f}" if ratio else "",
                f"{figures['trainer_cpu_us_per_sample'][name]:.0f}",
            )
    return table
