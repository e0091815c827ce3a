"""The command `counterpoise try`: measures a user's own data set, and says what to paste."""

import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch.utils.data as torch_data
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from ...balancer.planning.problem.balance import Balance
from ...loader import DataLoader
from ...workers.sources.cache_files import replace_file
from ...workers.sources.failures import read_letters
from ..console.reporting import PLAIN, emit, live_progress, make_table
from .advice import Case, Json, advise, foretell_step
from .costs import Found, find_costs
from .page import render_page
from .subject import Subject, UnusableDataError, open_subject, why_unpicklable
from .turns import SAME, TORCH, Contender, compare, figures, take_turns

COUNT = click.IntRange(min=1)
# The share of the time in which costs are measured, and broken samples that are named.
MEASURING, NAMED = 0.2, 5
BALANCED = ("auto", "later")
LABELS = {
    TORCH: "torch's DataLoader",
    "ours": "cp.DataLoader",
    "auto": '  balance="auto"',
    "later": "  from epoch 2 on",
}


@click.command("try")
@click.argument("source")
@click.option("--batch-size", type=COUNT, help="Samples of a batch.  [8, or the script's]")
@click.option("--collate", default="", metavar="MODULE:NAME", help="Your collate_fn.")
@click.option("--transform", default="", metavar="MODULE:NAME", help="Of files: your transform.")
@click.option("--step-ms", type=click.FloatRange(min=0, min_open=True), default=250.0,
              show_default=True, help="Milliseconds of a step now, if data are there.")  # fmt: skip
@click.option("--ranks", type=COUNT, help="Data-parallel ranks of the job.  [8, or the script's]")
@click.option("--accumulate", type=COUNT, default=1, show_default=True,
              help="Microbatches of a rank in a step.")  # fmt: skip
@click.option("--workers", type=click.IntRange(min=0), help="Workers.  [4, or the script's]")
@click.option("--seconds", type=COUNT, default=60, show_default=True, help="Time for all of it.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option("--html", type=click.Path(path_type=Path), help="Write the report as a page, too.")
def command(
    source: str, as_json: bool, html: Path | None, seconds: int, step_ms: float, accumulate: int,
    ranks: int | None, batch_size: int | None, workers: int | None, collate: str, transform: str,
) -> None:  # fmt: skip
    """Try your own data set under torch's DataLoader, ours, and ours with balance="auto".

    SOURCE is a map-style data set or a stream as package.module:name or FILE.py:NAME (an object, or
    a function that makes one), a function that makes a DataLoader, or files: tar shards, JSONL,
    parquet, a folder of Hugging Face. All three loaders read it in turns. The last line is what to
    paste into your script.

    \b
    Example:
      counterpoise try mydata:dataset --collate mydata:collate --step-ms 250 --ranks 8
      counterpoise try train.py:make_loader --html try.html
      counterpoise try 'shards/*.tar' --seconds 30 --json
    """  # noqa: D301
    with live_progress() as progress, _quiet():
        bar = progress.add_task("open", total=None, live=source)
        subject = open_subject(source, batch_size, workers, collate, transform)
        report = try_all(
            subject, ranks or subject.ranks or 8, accumulate, step_ms, seconds, progress, bar
        )
    if html is not None and not replace_file(html, render_page(report, LABELS).encode()):
        raise OSError(f"{html} could not be written; choose another path")
    emit(report, as_json, _speeds(report), _steps(report))
    if not as_json:
        _print_advice(report, html)
    if report["systems"][TORCH]["failed"] and report["systems"]["ours"]["failed"]:
        raise UnusableDataError(report["verdict"])


def try_all(
    subject: Subject, ranks: int, accumulate: int, step_ms: float, seconds: float,
    progress: Progress, bar: Any,
) -> Json:  # fmt: skip
    """Measure a subject for some seconds; return the report, as docs/guides/try.md has its keys."""
    ends = time.perf_counter() + seconds
    found = None
    if not subject.is_stream:
        progress.update(bar, description="costs", live="reading the first samples")
        told = lambda count: progress.update(bar, live=f"{count:,} samples measured")  # noqa: E731
        found = find_costs(subject, ranks, accumulate, MEASURING * seconds, told)
    with tempfile.TemporaryDirectory(prefix="counterpoise-try-") as folder:
        letters = Path(folder, "dead-letters.jsonl")
        contenders = _contenders(subject, found, accumulate, letters)
        progress.update(bar, description="turns")
        take_turns(
            contenders,
            subject.batch_size,
            subject.workers,
            max(1.0, ends - time.perf_counter()),
            lambda name: progress.update(bar, live=LABELS[name].strip()),
        )
        broken = list(found.broken) if found is not None else []
        broken += read_letters(letters) if letters.is_file() else []
    progress.update(bar, total=1, completed=1, live="")
    named = {each.key: each.reason for each in broken}
    return _report(subject, found, contenders, named, ranks, accumulate, step_ms)


def _contenders(
    subject: Subject, found: Found | None, accumulate: int, letters: Path
) -> list[Contender]:
    def ours(skip: bool, **more: Any) -> Any:
        errors = {"on_error": "skip", "dead_letter": str(letters)} if skip else {}
        return DataLoader(**{"dataset": subject.dataset, **subject.settings, **errors, **more})

    made = [
        Contender(TORCH, lambda _: torch_data.DataLoader(subject.dataset, **subject.settings)),
        Contender("ours", ours),
    ]
    if found is None or not found.choice.varies:
        return made
    auto = Balance("auto", accumulate=accumulate)
    made.append(Contender("auto", lambda skip: ours(skip, balance=auto), is_first_epoch=True))
    if found.loads:
        measured: Any = torch_data.Subset(subject.samples, found.indexes)
        more = {"dataset": measured, "cost": found.table(), "balance": auto}
        made.append(Contender("later", lambda skip: ours(skip, **more)))
    return made


def _report(
    subject: Subject, found: Found | None, contenders: list[Contender], broken: Mapping[str, str],
    ranks: int, accumulate: int, step_ms: float,
) -> Json:  # fmt: skip
    outlook = None if found is None else found.foretell()
    measured = {one.name: one for one in contenders if one.turns}
    apart = {
        name: compare(one, measured[TORCH])
        for name, one in measured.items() if name != TORCH and TORCH in measured
    }  # fmt: skip
    samples = subject.batch_size * accumulate
    # what differs by less than the rounds do counts as the same
    alike = {name for name, each in apart.items() if each["says"] == SAME}
    rates = {n: measured[TORCH if n in alike else n].median("rate") for n in measured}
    planned = (outlook.time, outlook.waiting) if outlook else (1.0, 0.0)
    random = (1.0, outlook.waited if outlook else 0.0)
    steps = {}
    for name, rate in rates.items():
        share, waiting = planned if name in BALANCED else random
        steps[name] = foretell_step(step_ms * share, waiting, samples, rate)
    case = Case(
        subject=subject, accumulate=accumulate, step_ms=step_ms, steps=steps,
        apart={name: each["says"] for name, each in apart.items()}, outlook=outlook,
        others={} if found is None else found.others(),
        varies=found is not None and found.choice.varies,
        costs_said="" if found is None else found.choice.costs_said,
        loads=found is not None and found.loads,
        failed={one.name: one.failed for one in contenders if one.failed}, broken=len(broken),
        needed_rate=1e3 * samples / step_ms, rates=rates, cores=len(os.sched_getaffinity(0)),
    )  # fmt: skip
    verdict, better, paste = advise(case)
    report: Json = {
        "source": subject.name,
        "samples": len(subject.dataset) if hasattr(subject.dataset, "__len__") else None,
        "settings": {
            "batch_size": subject.batch_size, "workers": subject.workers, "ranks": ranks,
            "accumulate": accumulate, "step_ms": step_ms, "shuffle": subject.shuffle,
        },
        "systems": {one.name: figures(one) for one in contenders},
        "against_torch": apart,
        "steps": {name: asdict(step) for name, step in steps.items()},
        "needed_samples_per_s": case.needed_rate,
        "forecast": None if outlook is None else asdict(outlook),
        "costs": {
            "found": case.costs_said, "work": "" if found is None else found.choice.work_said,
            "vary": case.varies, "only_loading_shows": case.loads,
        },
        "broken": {"count": len(broken), "named": dict(list(broken.items())[:NAMED])},
        "unpicklable": why_unpicklable(subject),
        "notes": list(subject.notes),
        "verdict": verdict,
        "better": [asdict(each) for each in better],
        "paste": paste,
    }  # fmt: skip
    return {**report, "sentences": list(_sentences(report))}


def _speeds(report: Json) -> Table:
    given = report["settings"]
    count = "a stream" if report["samples"] is None else f"{report['samples']:,} samples"
    title = (
        f"{report['source']}: {count}, batches of {given['batch_size']}, {given['workers']} workers"
    )
    columns = ("", "samples/s", "range", "against\ntorch", "first\nbatch", "trainer CPU\na batch")
    table = make_table(None, *columns, **PLAIN)
    table.title = Text(title)
    for name, found in report["systems"].items():
        if "samples_per_s" not in found:
            table.add_row(LABELS[name], "failed")
            continue
        rate, apart = found["samples_per_s"], report["against_torch"].get(name)
        words = "" if apart is None else f"{apart['median']:.2f} x"
        words = "same" if apart is not None and apart["says"] == SAME else words
        table.add_row(
            LABELS[name], f"{rate['median']:,.0f}", f"{rate['low']:,.0f} to {rate['high']:,.0f}",
            words, f"{found['first_batch_s']:.2f} s", f"{found['trainer_cpu_ms_per_batch']:.2f} ms",
        )  # fmt: skip
    return table


def _steps(report: Json) -> Table:
    given, told = report["settings"], report["forecast"]
    title = f"\nA step of {given['ranks']} ranks (foretold)"
    columns = ("", "step", "ranks wait\nfor each other", "and for\ndata", "padding")
    table = make_table(title, *columns, **PLAIN)
    for name, step in report["steps"].items():
        key = "padding" if name in BALANCED else "padding_random"
        padding = None if told is None else told[key]
        table.add_row(
            LABELS[name], f"{step['ms']:,.0f} ms",
            f"{100 * step['ranks']:.0f} %" if told else "", f"{100 * step['data']:.0f} %",
            "" if padding is None else f"{100 * padding:.0f} %",
        )  # fmt: skip
    return table


def _sentences(report: Json) -> Iterator[str]:
    """Yield what else there is to say, one sentence or more each."""
    costs, told = report["costs"], report["forecast"]
    if costs["found"]:
        of = f" Measured in {told['samples']:,} samples." if told else ""
        work = f"; {costs['work']}" if costs["work"] else ""
        yield f"Costs: {costs['found']}{work}.{of}"
    if report["broken"]["count"]:
        name, reason = next(iter(report["broken"]["named"].items()))
        yield (
            f"{report['broken']['count']:,} of the samples that were read are broken, such as "
            f"{name}: {reason}. torch's DataLoader ends there; ours leaves them out with "
            'on_error="skip".'
        )
    for name, found in report["systems"].items():
        if found["failed"]:
            yield f"{LABELS[name].strip()} failed: {found['failed']}"
    if report["unpicklable"]:
        yield (
            f"It cannot be pickled ({report['unpicklable']}): torch's workers and ours read it "
            "only where they are forked, as on Linux up to Python 3.13, and not on other machines "
            "(balancer=)."
        )
    yield from report["notes"]


def _print_advice(report: Json, html: Path | None) -> None:
    console = Console()
    say = lambda text, **style: console.print(text, markup=False, highlight=False, **style)  # noqa: E731
    say("")
    say(report["verdict"], style="bold")
    for text in report["sentences"]:
        say(text)
    if report["better"]:
        say("\nWhat would be better:", style="bold")
    for each in report["better"]:
        step = "" if each["time"] is None else f"step {each['time']:.2f} of random order's: "
        say(f"  {each['change']}: {step}{each['why']}")
    if html is not None:
        say(f"\nThe page: {html}")
    say("\nPaste:", style="bold")
    for line in report["paste"]:
        click.echo(line)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the loaders' own lines to themselves: this command says what they say."""
    logger = logging.getLogger("counterpoise")
    before, handler = (logger.propagate, logger.level), logging.NullHandler()
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate, _ = before
