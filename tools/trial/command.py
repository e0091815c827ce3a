"""The command `counterpoise try`: measures a user's own data set, and says what to paste."""

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch.utils.data as torch_data
from rich.progress import Progress

from ...loader import DataLoader, OnError
from ...workers.sources.cache_files import replace_file
from ...workers.sources.dead_letters import read_letters
from ..console.commands import COUNT, FILE, Command, json_option
from ..console.reporting import emit, live_progress
from .advice import Json, advise, foretell_step
from .costs import TrialCosts, find_costs
from .subject import Subject, Unbroken, UnusableDataError, open_subject, why_unpicklable
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
@click.option("--workers", type=click.IntRange(min=0), help="Workers.  [4, or the script's]")
@click.option("--seconds", type=COUNT, default=60, help="About how long it takes in all.  [60]")
@click.option("--out", type=FILE, help="Write the report as a page (HTML), too.")
@json_option
def command(
    source: str, as_json: bool, out: Path | None, seconds: int, step_ms: float, accumulate: int,
    ranks: int | None, batch_size: int | None, workers: int | None, collate: str, transform: str,
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
        given = {
            "batch_size": taken["batch_size"], "workers": taken["num_workers"], "step_ms": step_ms,
            "ranks": ranks or subject.ranks or 8, "accumulate": accumulate,
            "cores": len(os.sched_getaffinity(0)),
        }  # fmt: skip
        report = try_all(subject, given, seconds, progress, bar)
    if out is not None and not replace_file(out, render_page(report).encode()):
        raise OSError(f"{out} could not be written; choose another path")
    emit(report, as_json, *make_tables(report))
    if not as_json:
        print_advice(report, out)
    if report["systems"][TORCH]["failed"] and report["systems"]["ours"]["failed"]:
        raise UnusableDataError(report["verdict"])


def try_all(subject: Subject, given: Json, seconds: float, progress: Progress, bar: Any) -> Json:
    """Measure a subject for some seconds; return the report, as docs/guides/try.md has its keys."""
    ends = time.perf_counter() + seconds
    found = None
    if not subject.is_stream:
        progress.update(bar, description="costs", live="of the first samples")
        told = lambda count: progress.update(bar, live=f"of {count:,} samples")  # noqa: E731
        found = find_costs(subject, given["ranks"], given["accumulate"], MEASURING * seconds, told)
    with tempfile.TemporaryDirectory(prefix="counterpoise-try-") as folder:
        letters = Path(folder, "dead-letters.jsonl")
        contenders = _contenders(subject, found, letters)
        progress.update(bar, description="turns")
        take_turns(
            contenders, given["batch_size"], given["workers"], max(1.0, ends - time.perf_counter()),
            lambda name: progress.update(bar, live=LABELS[name].strip()),
        )  # fmt: skip
        broken = [] if found is None else list(found.broken)
        broken += read_letters(letters) if letters.is_file() else []
    progress.update(bar, total=1, completed=1, live="")
    named = {each.key: each.reason for each in broken}
    return _report(subject, found, contenders, given, named)


def _contenders(subject: Subject, found: TrialCosts | None, letters: Path) -> list[Contender]:
    def ours(skip: bool, **more: Any) -> Any:
        errors = {"on_error": OnError("skip", dead_letter=str(letters))} if skip else {}
        return DataLoader(**{"dataset": subject.dataset, **subject.arguments, **errors, **more})

    def torchs(skip: bool) -> Any:
        data: Any = Unbroken(subject.dataset) if skip else subject.dataset
        return torch_data.DataLoader(data, **subject.arguments)

    broken = found is not None and bool(found.broken)
    made = [Contender(TORCH, torchs, skips=broken), Contender("ours", ours, skips=broken)]
    if found is None or not found.known.choice.varies:
        return made
    balance = found.known.terms.balance
    auto = Contender("auto", lambda skip: ours(skip, balance=balance), skips=broken)
    if found.loads:
        # As in a later epoch, samples whose costs are known, in an epoch that is as long.
        auto.start, more = auto.make, _with_known_costs(subject, found)
        auto.make = lambda skip: ours(skip, balance=balance, **more)
    return [*made, auto]


def _with_known_costs(subject: Subject, found: TrialCosts) -> dict[str, Any]:
    count = min(len(subject.samples), MOST_KNOWN)
    places = np.resize(np.arange(len(found.indexes)), count)
    known: Any = torch_data.Subset(subject.samples, np.array(found.indexes)[places].tolist())
    names, rows = found.known.choice.resources, found.known.rows
    return {"dataset": known, "cost": {name: rows[places, k] for k, name in enumerate(names)}}


def _report(
    subject: Subject, found: TrialCosts | None, contenders: list[Contender], given: Json,
    broken: dict[str, str],
) -> Json:  # fmt: skip
    told = None if found is None else found.known.foretell()
    measured = {one.name: one for one in contenders if one.turns}
    others = [name for name in measured if name != TORCH and TORCH in measured]
    apart = {name: compare(measured[name], measured[TORCH]) for name in others}
    # what differs by less than the rounds do counts as the same
    alike = {name for name in apart if apart[name]["says"] == SAME}
    rates = {name: measured[TORCH if name in alike else name].median("rate") for name in measured}
    samples = given["batch_size"] * given["accumulate"]
    steps = {}
    for name, rate in rates.items():
        share, waiting = (1.0, told.waited if told else 0.0)
        if told and name == "auto":
            share, waiting = told.time, told.waiting
        steps[name] = foretell_step(given["step_ms"] * share, waiting, samples, rate)
    report: Json = {
        "source": subject.name,
        "is_stream": subject.is_stream,
        "samples": len(subject.dataset) if hasattr(subject.dataset, "__len__") else None,
        "settings": given,
        "systems": {one.name: figures(one) for one in contenders},
        "against_torch": apart,
        "rates": rates,
        "needed_samples_per_s": 1e3 * samples / given["step_ms"],
        "steps": steps,
        "forecast": None if told is None else asdict(told),
        "other_plans": {} if found is None else found.other_plans(),
        "costs": _costs(found),
        "broken": {"count": len(broken), "named": dict(list(broken.items())[:NAMED])},
        "unpicklable": why_unpicklable(subject),
    }
    report |= advise(report, subject.setup, subject.line)
    return {**report, "notes": [*make_notes(report), *subject.notes]}


def _costs(found: TrialCosts | None) -> Json:
    """Return what samples cost, in words."""
    choice = None if found is None else found.known.choice
    return {
        "found": choice.costs_said if choice else "",
        "work": choice.work_said if choice else "",
        "vary": choice is not None and choice.varies,
        "recognised": choice is None or not choice.unrecognised,
        "labels": "" if found is None else found.labels,
        "only_loading_shows": found is not None and found.loads,
        "labels_shifted": found is not None and not found.known.terms.balance.shift_labels,
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
