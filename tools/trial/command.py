"""The command `counterpoise try`: measures a user's own data set, and says what to paste."""

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
import torch.utils.data as torch_data
from rich.progress import Progress

from ...balancer.planning.problem.options import Waits
from ...loader import DataLoader, OnError
from ...workers.sources.cache_files import replace_file
from ...workers.sources.dead_letters import read_letters
from ..console.commands import COUNT, FILE, Command, json_option
from ..console.reporting import emit, live_progress
from .advice import Json, advise, foretell_step
from .costs import TrialCosts, find_costs
from .subject import Subject, Unbroken, UnusableDataError, find_pickle_error, open_subject
from .turns import SAME, TORCH, Contender, compare, figures, take_turns
from .words import LABELS, make_notes, make_tables, print_advice, render_page

STEP_MS = click.FloatRange(min=0, min_open=True)
# The share of the time in which costs are measured, and broken samples that are named.
MEASURING, NAMED = 0.2, 5
# Samples whose costs are known: as many as the data set has, up to so many.
MOST_KNOWN = 200_000


@click.command(
    "try", cls=Command,
    usual=("--batch-size", "--collate", "--transform", "--step-ms", "--ranks", "--out"),
)  # fmt: skip
@click.argument("source")
@click.option("--batch-size", type=COUNT, help="Samples of a batch.  [8, or the script's]")
@click.option("--collate", default="", metavar="MODULE:NAME", help="Your collate_fn.")
@click.option("--transform", default="", metavar="MODULE:NAME", help="Your transform, of files.")
@click.option("--step-ms", type=STEP_MS, default=250.0, show_default=True,
              help="Milliseconds of a step now, when its data are there.")  # fmt: skip
@click.option("--ranks", type=COUNT, help="Data-parallel ranks of the job.  [8, or the script's]")
@click.option("--accumulate", type=COUNT, default=1, help="Microbatches of a rank in a step.  [1]")
@click.option("--waits", type=click.Choice(get_args(Waits)),
              help="Ranks meet in each microbatch, or once (no_sync).  [microbatch]")  # fmt: skip
@click.option("--workers", type=click.IntRange(min=0), help="Workers.  [4, or the script's]")
@click.option("--seconds", type=COUNT, default=60, help="About how long it takes in all.  [60]")
@click.option("--out", type=FILE, help="Write the report as a page (HTML), too.")
@json_option
def command(
    source: str, as_json: bool, out: Path | None, seconds: int, step_ms: float, accumulate: int,
    waits: Waits | None, ranks: int | None, batch_size: int | None, workers: int | None,
    collate: str, transform: str,
) -> None:  # fmt: skip
    """Try your own data set under torch's DataLoader, ours, and ours with balance="auto".

    SOURCE is a data set or a stream as package.module:name or FILE.py:NAME (an object, or a
    function that makes one), a function that makes a DataLoader, or files: tar shards, JSONL,
    parquet, a folder of Hugging Face. All loaders read it in turns. The last line is what to paste
    into your script.

    \b
    Example:
      counterpoise try mydata:dataset --collate mydata:collate --step-ms 250 --ranks 8
      counterpoise try train.py:make_loader --out try.html
      counterpoise try 'shards/*.tar' --seconds 30 --json
    """  # noqa: D301
    with live_progress(2) as progress, _quiet():
        bar = progress.add_task("open", total=None, live=source)
        subject = open_subject(source, batch_size, workers, collate, transform)
        taken = subject.settings
        settings = {
            "batch_size": taken["batch_size"], "workers": taken["num_workers"], "step_ms": step_ms,
            "ranks": ranks or subject.ranks or 8, "accumulate": accumulate,
            "waits": waits, "cores": len(os.sched_getaffinity(0)),
        }  # fmt: skip
        report = try_all(subject, settings, seconds, progress, bar)
    if out is not None and not replace_file(out, render_page(report).encode()):
        raise OSError(f"{out} could not be written; choose another path")
    emit(report, as_json, *make_tables(report))
    if not as_json:
        print_advice(report, out)
    if report["systems"][TORCH]["failed"] and report["systems"]["ours"]["failed"]:
        raise UnusableDataError(report["verdict"])


def try_all(subject: Subject, settings: Json, seconds: float, progress: Progress, bar: Any) -> Json:
    """Measure a subject for some seconds; return the report, as docs/guides/try.md has its keys."""
    ends = time.perf_counter() + seconds
    costs = None
    if not subject.is_stream:
        progress.update(bar, description="costs", live="of the first samples")
        costs = find_costs(
            subject, settings["ranks"], settings["accumulate"], settings["waits"],
            MEASURING * seconds, lambda count: progress.update(bar, live=f"of {count:,} samples"),
        )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="counterpoise-try-") as folder:
        letters = Path(folder, "dead-letters.jsonl")
        contenders = _contenders(subject, costs, letters)
        progress.update(bar, description="turns")
        take_turns(
            contenders, settings["batch_size"], settings["workers"],
            max(1.0, ends - time.perf_counter()),
            lambda name: progress.update(bar, live=LABELS[name].strip()),
        )  # fmt: skip
        broken = [] if costs is None else list(costs.broken)
        broken += read_letters(letters) if letters.is_file() else []
    progress.update(bar, total=1, completed=1, live="")
    named = {letter.key: letter.reason for letter in broken}
    return _report(subject, costs, contenders, settings, named)


def _contenders(subject: Subject, costs: TrialCosts | None, letters: Path) -> list[Contender]:
    def ours(skip: bool, **more: Any) -> Any:
        errors = {"on_error": OnError("skip", dead_letter=str(letters))} if skip else {}
        return DataLoader(**{"dataset": subject.dataset, **subject.arguments, **errors, **more})

    def torchs(skip: bool) -> Any:
        data: Any = Unbroken(subject.dataset) if skip else subject.dataset
        return torch_data.DataLoader(data, **subject.arguments)

    broken = costs is not None and bool(costs.broken)
    plain = [Contender(TORCH, torchs, skips=broken), Contender("ours", ours, skips=broken)]
    if costs is None or not costs.known.choice.varies:
        return plain
    balance = costs.known.terms.balance
    auto = Contender("auto", lambda skip: ours(skip, balance=balance), skips=broken)
    if costs.loads:
        # As in a later epoch, samples whose costs are known, in an epoch that is as long.
        auto.start, more = auto.make, _reuse_costs(subject, costs)
        auto.make = lambda skip: ours(skip, balance=balance, **more)
    return [*plain, auto]


def _reuse_costs(subject: Subject, costs: TrialCosts) -> dict[str, Any]:
    count = min(len(subject.samples), MOST_KNOWN)
    places = np.resize(np.arange(len(costs.indexes)), count)
    known: Any = torch_data.Subset(subject.samples, np.array(costs.indexes)[places].tolist())
    names, rows = costs.known.choice.resources, costs.known.rows
    return {"dataset": known, "cost": {name: rows[places, k] for k, name in enumerate(names)}}


def _report(
    subject: Subject, costs: TrialCosts | None, contenders: list[Contender], settings: Json,
    broken: dict[str, str],
) -> Json:  # fmt: skip
    forecast = None if costs is None else costs.known.foretell()
    measured = {contender.name: contender for contender in contenders if contender.turns}
    own_loaders = [name for name in measured if name != TORCH and TORCH in measured]
    apart = {name: compare(measured[name], measured[TORCH]) for name in own_loaders}
    # what differs by less than the rounds do counts as the same
    alike = {name for name in apart if apart[name]["says"] == SAME}
    rates = {name: measured[TORCH if name in alike else name].median("rate") for name in measured}
    samples = settings["batch_size"] * settings["accumulate"]
    steps = {}
    for name, rate in rates.items():
        share, waiting = (1.0, forecast.waited if forecast else 0.0)
        if forecast and name == "auto":
            share, waiting = forecast.time, forecast.waiting
        steps[name] = foretell_step(settings["step_ms"] * share, waiting, samples, rate)
    report: Json = {
        "source": subject.name,
        "is_stream": subject.is_stream,
        "samples": len(subject.dataset) if hasattr(subject.dataset, "__len__") else None,
        "settings": settings,
        "systems": {contender.name: figures(contender) for contender in contenders},
        "against_torch": apart,
        "rates": rates,
        "needed_samples_per_s": 1e3 * samples / settings["step_ms"],
        "steps": steps,
        "forecast": None if forecast is None else asdict(forecast),
        "other_plans": {} if costs is None else costs.other_plans(),
        "costs": _costs(costs),
        "broken": {"count": len(broken), "named": dict(list(broken.items())[:NAMED])},
        "unpicklable": find_pickle_error(subject),
    }
    report |= advise(report, subject.setup, subject.line)
    return {**report, "notes": [*make_notes(report), *subject.notes]}


def _costs(costs: TrialCosts | None) -> Json:
    """Return what samples cost, in words."""
    choice = None if costs is None else costs.known.choice
    return {
        "found": choice.costs_said if choice else "",
        "work": choice.work_said if choice else "",
        "vary": choice is not None and choice.varies,
        "recognised": choice is None or not choice.unrecognised,
        "labels": "" if costs is None else costs.labels,
        "only_loading_shows": costs is not None and costs.loads,
        "labels_shifted": costs is not None and not costs.known.terms.balance.shift_labels,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the loaders' own lines from the terminal: this command says what they say."""
    logger = logging.getLogger("counterpoise")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
