"""`counterpoise demo`: train a small vision-language model by three loaders, and compare."""

import sys
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

import click
import torch
from rich.progress import Progress
from rich.table import Table
from torch.utils.data import DataLoader as TorchDataLoader

from ...balancer.planning.kernels.loops import check_work
from ...balancer.planning.problem.shuffle import permutation
from ...loader import Balance, DataLoader, Ranks
from ...workers.collate.layouts import collate_padded
from ...workers.sources.registry import open_data
from ..console.commands import Command, json_option
from ..console.reporting import PLAIN, emit, live_progress, make_table, progress_console
from .data import ensure_demo_data
from .model import DemoModelShape
from .train import DemoMicrobatch, StepRecord, summarize, timed, train
from .transform import ClippedBytes, transform

VIRTUAL_RANKS = 8
SEED, SAMPLES_PER_STEP, BATCH_SIZE = 0, 64, 4
SHAPE = DemoModelShape(ClippedBytes.vocab_size, ClippedBytes.image_id)
# The most that a balanced microbatch may hold: well above a rank's average.
BUDGETS = {"tiles": 192, "tokens": 16384}
RUNS = ("torch", "ours", "balanced")
TITLES = {
    "samples": ("samples delivered", "{:,}"),
    "loss_first": ("loss at the start", "{:.3f}"),
    "loss_last": ("loss at the end", "{:.3f}"),
    "padding": ("tokens that are only padding", "{:.1%}"),
    "waiting": ("time that ranks wait for the slowest", "{:.1%}"),
    "samples_per_second": (f"samples/s of {VIRTUAL_RANKS} ranks", "{:,.0f}"),
    "first_batch_s": ("first batch after", "{:.2f} s"),
    "wait_for_data_s": ("waits for all other batches", "{:.2f} s"),
}
NEXT = """
torch is torch's DataLoader, ours is counterpoise's, balanced is ours with balance=.
Padding and waiting are counted in the tensors that arrived. Samples/s are timed: a step takes
as long as its slowest rank computes, in CPU time. Waits for data are apart.

With your own data:
  counterpoise try mydata:dataset                 what your data would gain, in a minute
  counterpoise.DataLoader(..., balance="auto")    the line to change in your loop
  docs/start.md                                   the page to read, in five minutes
"""


@click.command("demo", cls=Command)
@click.argument("source", required=False)
@click.option("--samples", default=768, show_default=True, help="Samples of the demo's own data.")
@click.option("--workers", default=2, show_default=True, help="Worker processes.")
@json_option
def command(source: str | None, samples: int, workers: int, as_json: bool) -> None:
    """Train a small vision-language model with torch's loader, with ours, and balanced.

    One process plays the microbatches of 8 data-parallel ranks. All runs see the same samples in
    the same steps from the same seed, so their losses are the same up to rounding; the first two
    have a fixed number of samples in a padded microbatch, `balanced` packs them by their cost.
    SOURCE: tar shards; by default data that are made on first use.

    \b
    Example:
      counterpoise demo
      counterpoise demo 'shards/*.tar' --workers 4 --json
    """  # noqa: D301
    check_work("the demo", plain_s=0.0)  # says what is not compiled now, not between two bars
    if source is None:
        with Progress(console=progress_console) as bar:
            task = bar.add_task("making the demo's data", total=samples)
            source = ensure_demo_data(
                samples=samples, progress=lambda done: bar.update(task, completed=done)
            )
    # A model this small gains nothing from threads, and they would compete with the workers.
    torch.set_num_threads(1)
    open_data(source, transform)  # an error of the data stands alone
    with live_progress() as progress:
        report = {name: _run(name, source, workers, progress) for name in RUNS}
    emit(report, as_json, _table(report))
    if not as_json:
        sys.stdout.write(NEXT)


def _run(name: str, source: str, workers: int, progress: Progress) -> dict[str, Any]:
    """Train once; return the run's figures."""
    records: list[StepRecord] = []
    with closing(microbatches(name, source, workers)) as epoch:
        task = progress.add_task(name, total=None, live="")
        for record in train(epoch, SHAPE, SEED, time.thread_time):
            records.append(record)
            progress.update(task, advance=1, live=_live(records))
        progress.update(task, total=len(records))
    return summarize(records)


def microbatches(name: str, source: str, workers: int) -> Generator[DemoMicrobatch]:
    """Yield an epoch's microbatches by the loader of a run: of all ranks, step by step."""
    dataset = open_data(source, transform)
    if name == "balanced":
        balance = Balance(
            budgets=BUDGETS, accumulate="auto", layout="packed", seed=SEED,
            samples_per_step=SAMPLES_PER_STEP,
        )  # fmt: skip
        loader = DataLoader(
            dataset, shuffle=True, num_workers=workers, balance=balance,
            ranks=Ranks(virtual=VIRTUAL_RANKS),
        )  # fmt: skip
        with closing(loader):
            for wait_s, (batch, info) in timed(loader.with_info()):
                yield DemoMicrobatch(info.step, info.rank, batch, wait_s, info.empty)
        return
    loader_class = TorchDataLoader if name == "torch" else DataLoader
    # The balanced run's shuffle: its steps have the same samples.
    order = permutation(len(dataset), SEED, epoch=0).tolist()
    plain = loader_class(
        dataset, BATCH_SIZE, sampler=order, num_workers=workers, collate_fn=collate_padded
    )
    for number, (wait_s, batch) in enumerate(timed(plain)):
        step = number * BATCH_SIZE // SAMPLES_PER_STEP
        yield DemoMicrobatch(step, number % VIRTUAL_RANKS, batch, wait_s)


def _live(records: list[StepRecord]) -> str:
    """Return the figures of the last steps, in words."""
    figures = summarize(records[-20:])
    waited = sum(load.wait_s for load in records[-1].loads)
    return (
        f"{figures['samples_per_second']:.0f} samples/s, ranks wait {figures['waiting']:.0%}, "
        f"data {waited:.2f} s"
    )


def _table(report: Mapping[str, Mapping[str, Any]]) -> Table:
    title = f"Training on {VIRTUAL_RANKS} simulated ranks"
    table = make_table(title, "", *report, **PLAIN)
    for name, (title, form) in TITLES.items():
        table.add_row(title, *(form.format(run[name]) for run in report.values()))
    return table
