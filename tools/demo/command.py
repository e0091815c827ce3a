"""`counterpoise demo`: train a small vision-language model unbalanced and balanced, and compare.

With --pipeline it is the flagship example instead, in a small form (`pipeline.py`).
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import click
import torch
from rich.progress import Progress
from rich.table import Table

from ...loader import Balance, DataLoader
from ...loader.step.info import Step
from ...workers import SampleError
from ...workers.sources.registry import source_of
from ..console.reporting import emit, live_progress, make_table, progress_console
from .data import cache_folder, ensure_demo_data
from .model import DemoModelShape
from .pipeline import show_pipeline, with_pipeline_options
from .train import StepRecord, summarize, train
from .transform import VIRTUAL_RANKS, ClippedBytes, DemoSettings, make_transform

# The most that a balanced microbatch may hold: well above a rank's average.
BUDGETS = {"tiles": 192, "tokens": 16384}
RUNS = ("random", "balanced")
TITLES = {
    "delivered": "samples delivered",
    "distinct_keys": "distinct keys",
    "holes": "holes",
    "pad_ratio": "padding ratio",
    "dist_ratio.tiles": "DistRatio of tiles",
    "dist_ratio.tokens": "DistRatio of tokens",
    "waiting": "waiting for the slowest rank (a tile as 307 tokens)",
    "work_max_over_mean": "work per step, max / mean over ranks",
    "exposed_wait_s": "exposed wait after the first step, s",
    "loss_first": "loss, first tenth of the steps",
    "loss_last": "loss, last tenth of the steps",
}


@click.command(name="demo")
@click.option("--data", metavar="PATTERN", help="Tar shards [default: made on first use].")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option("--seed", default=0, show_default=True, help="Seed of order, model and demo data.")
@click.option("--workers", default=2, show_default=True, help="Worker processes.")
@click.option("--epochs", default=1, show_default=True, help="Epochs of each run.")
@click.option("--samples", default=768, show_default=True, help="Samples of the demo data.")
@click.option("--samples-per-step", default=64, show_default=True, help="Global batch size.")
@click.option("--batch-size", default=4, show_default=True, help="Samples per random microbatch.")
@click.option("--tile-size", default=32, show_default=True, help="Side of a tile in pixels.")
@click.option("--text-limit", default=256, show_default=True, help="Most tokens of a text piece.")
@click.option("--width", default=64, show_default=True, help="Width of the model.")
@click.option("--depth", default=2, show_default=True, help="Layers of the decoder.")
@with_pipeline_options
def command(
    data: str | None, as_json: bool, samples: int, pipeline: Mapping[str, Any] | None, **sizes: int
) -> None:
    """Train a small vision-language model with random and with balanced microbatches.

    One process plays the microbatches of 8 data-parallel ranks. Both runs see the same samples in
    the same steps from the same seed, so their losses are the same up to rounding; `random` has
    a fixed number of samples in a padded microbatch, `balanced` packs them by their cost. All
    figures are counted in the tensors that arrived.

    With --pipeline, 4 processes train a language model on a pipeline with its image encoder in the
    bubbles; balanced batches, ordered microbatches and divided vocabulary layers included.

    \b
    Example:
      counterpoise demo
      counterpoise demo --pipeline --pp 2
      counterpoise demo --data 'shards/*.tar' --workers 4 --json
    """  # noqa: D301
    if pipeline is not None:
        show_pipeline(pipeline, data, cache_folder(), as_json=as_json)
        return
    settings = DemoSettings(data or "", **sizes)
    if data is None:
        with Progress(console=progress_console) as bar:
            task = bar.add_task("making the demo's data", total=samples)
            made = ensure_demo_data(
                seed=settings.seed,
                samples=samples,
                progress=lambda done: bar.update(task, completed=done),
            )
        settings = replace(settings, data=made)
    # A model this small gains nothing from threads, and they would compete with the workers.
    torch.set_num_threads(1)
    with live_progress() as progress:
        _measure(settings, progress)
        report = {name: _run(name, settings, progress) for name in RUNS}
    emit(report, as_json, _table(report))


def _measure(settings: DemoSettings, progress: Progress) -> None:
    """Measure all costs once (they are cached), so that the first run does not pay for both."""
    dataset = _dataset(settings)
    task = progress.add_task("measure", total=len(dataset), live="samples")
    for index in range(len(dataset)):
        with suppress(SampleError):
            dataset.probe(index)
        progress.update(task, advance=1)


def _run(name: str, settings: DemoSettings, progress: Progress) -> dict[str, Any]:
    """Train once; return the run's report."""
    records: list[StepRecord] = []
    with closing(make_loader(name, settings)) as loader:
        task = progress.add_task(name, total=settings.epochs * loader.num_steps, live="")
        started = time.perf_counter()
        for record in train(_steps(loader, settings.epochs), _shape(settings), settings.seed):
            records.append(record)
            progress.update(task, advance=1, live=_live(records, time.perf_counter() - started))
    return summarize(records)


def _dataset(settings: DemoSettings) -> Any:
    return source_of(settings.data, make_transform(settings))


def make_loader(name: str, settings: DemoSettings) -> DataLoader:
    """Return the loader of a run: "random" or "balanced"."""
    balances = {
        "random": Balance(
            grouping="fixed",
            accumulate=settings.samples_per_step // (VIRTUAL_RANKS * settings.batch_size),
            partition="given",
            layout="padded",
        ),
        "balanced": Balance(budgets=BUDGETS, accumulate="auto", layout="packed"),
    }
    balance = balances[name]
    return DataLoader(
        _dataset(settings),
        settings.batch_size if balance.grouping == "fixed" else 1,
        shuffle=True,
        num_workers=settings.workers,
        balance=replace(balance, samples_per_step=settings.samples_per_step, seed=settings.seed),
        virtual_ranks=VIRTUAL_RANKS,
        on_error="skip",
    )


def _steps(loader: DataLoader, epochs: int) -> Iterator[Step]:
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        yield from loader.steps()


def _shape(settings: DemoSettings) -> DemoModelShape:
    return DemoModelShape(
        vocabulary=ClippedBytes.vocab_size,
        image_token=ClippedBytes.image_id,
        tile=settings.tile_size,
        patch=settings.tile_size // 4,
        tokens_per_tile=settings.tokens_per_tile,
        width=settings.width,
        depth=settings.depth,
    )


def _live(records: list[StepRecord], elapsed_s: float) -> str:
    """Return the last step's loss and wait, and the mean speed until now, in words."""
    last = records[-1]
    delivered = sum(load.samples for record in records for load in record.loads)
    speed = delivered / elapsed_s
    return f"loss {last.loss:.3f}  {speed:.0f} samples/s  waited {last.wait_s:.2f} s"


def _table(report: Mapping[str, Mapping[str, Any]]) -> Table:
    table = make_table(f"Loads of {VIRTUAL_RANKS} simulated ranks", "", *report)
    for path, title in TITLES.items():
        table.add_row(title, *(_cell(run, path) for run in report.values()))
    return table


def _cell(run: Mapping[str, Any], path: str) -> str:
    value: Any = run
    for name in path.split("."):
        value = value[name]
    return str(value) if isinstance(value, int) else f"{value:.3f}"
