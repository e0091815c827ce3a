"""Says in words what a trial has measured: on the terminal, and as a page."""

from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...workers.sources.visible_text import visible
from ..console.page import Card, Part, Paste, render_report
from ..console.reporting import PLAIN, make_table
from .advice import Json
from .turns import SAME, TORCH

LABELS = {TORCH: "torch's DataLoader", "ours": "cp.DataLoader", "auto": '  balance="auto"'}
SPEED_HEADS = ("", "samples/s", "range", "against torch", "first batch", "trainer CPU a batch")


def make_notes(report: Json) -> Iterator[str]:
    """Yield what else there is to say, one sentence or more each."""
    costs, forecast, broken = report["costs"], report["forecast"], report["broken"]
    if costs["found"]:
        work = f"; {costs['work']}" if costs["work"] else ""
        of = f" The forecast is from {forecast['samples']:,} samples." if forecast else ""
        yield f"Costs: {costs['found']}{work}.{of}"
    if forecast and report["settings"]["accumulate"] > 1 and not report["settings"]["waits"]:
        yield "Ranks meet in each microbatch here, as in FSDP. Trainer's meet once: --waits step."
    if costs["labels_shifted"]:
        yield "Each label is the next token already, which Layout(..., shift_labels=False) says."
    if broken["count"]:
        name, reason = next(iter(broken["named"].items()))
        yield (
            f"{broken['count']:,} of the samples that were read are broken, such as {name}: "
            f"{reason}. torch's DataLoader ends there; ours leaves them out with "
            'on_error="skip".'
        )
    for name, figures in report["systems"].items():
        if figures["failed"]:
            yield f"{LABELS[name].strip()} failed: {figures['failed']}."
    if report["unpicklable"]:
        yield (
            f"The data set or its collate_fn cannot be pickled ({report['unpicklable']}). torch's "
            "workers and ours read it where they are forked, as on Linux up to Python 3.13. "
            "Elsewhere, and on other machines (balancer=), neither do."
        )


def _count(report: Json) -> str:
    return "a stream" if report["samples"] is None else f"{report['samples']:,} samples"


def _speed_rows(report: Json) -> Iterator[tuple[str, ...]]:
    """Yield what each loader did, as SPEED_HEADS says."""
    for name, figures in report["systems"].items():
        if "samples_per_s" not in figures:
            yield LABELS[name], "failed", "", "", "", ""
            continue
        rate, apart = figures["samples_per_s"], report["against_torch"].get(name)
        ratio = "" if apart is None else f"{apart['median']:.2f} x"
        yield (
            LABELS[name], f"{rate['median']:,.0f}", f"{rate['low']:,.0f} to {rate['high']:,.0f}",
            "same" if apart and apart["says"] == SAME else ratio,
            f"{figures['first_batch_s']:.2f} s", f"{figures['trainer_cpu_ms_per_batch']:.2f} ms",
        )  # fmt: skip


def _step_rows(report: Json) -> Iterator[tuple[str, ...]]:
    """Yield a step with each loader: time, and the shares of waits for ranks and data, padding."""
    forecast = report["forecast"] or {}
    for name, step in report["steps"].items():
        padding = forecast.get("padding" if name == "auto" else "padding_random")
        shares = (step["ranks"] if forecast else None, step["data"], padding)
        words = ("" if share is None else f"{100 * share:.0f} %" for share in shares)
        yield LABELS[name], f"{step['ms']:,.0f} ms", *words


def make_tables(report: Json) -> Iterator[Table]:
    """Yield what was measured, and the steps that are foretold."""
    speeds = make_table(None, *SPEED_HEADS, **PLAIN)
    speeds.title = Text(f"{report['source']}: {_count(report)}")
    waits = ("ranks wait\nfor each other", "and for\ndata")
    steps = make_table(None, "a step (foretold)", "time", *waits, "padding", **PLAIN)
    steps.title = ""  # a line between
    for table, rows in ((speeds, _speed_rows(report)), (steps, _step_rows(report))):
        for row in rows:
            table.add_row(*row)
        yield table


def _describe_change(better: Json) -> str:
    step = f"step {better['time']:.2f} of random order's; " if better["time"] else ""
    return f"{step}{better['why']}"


def print_advice(report: Json, html: Path | None) -> None:
    """Print the sentence, what would be better, and last the lines to paste, as they are."""
    console = Console()
    lines = [Text("\n" + report["verdict"], "bold"), *map(Text, report["notes"])]
    lines += [Text("\nWhat would be better:", "bold")] if report["better"] else []
    lines += [
        Text(f"- {change['change']}: {_describe_change(change)}") for change in report["better"]
    ]
    lines += [Text(f"\nThe page: {html}")] if html is not None else []
    for line in (*lines, Text("\nPaste:", "bold")):
        console.print(line)
    # as they are: a line that is wrapped cannot be pasted
    click.echo("\n".join(report["paste"]))


def render_page(report: Json) -> str:
    """Return the report as a page."""
    loop = report["settings"]
    page = render_report(
        report["verdict"],
        f"{report['source']}: {_count(report)}, batches of {loop['batch_size']}, "
        f"{loop['workers']} workers. Speeds are measured here, in turns; the step of "
        f"{loop['ranks']} ranks is foretold from {loop['step_ms']:g} ms now.",
        [(LABELS[name].strip(), _parts(report, name)) for name in report["steps"]],
        Paste("Paste", "\n".join(report["paste"])),
        _cards(report),
        'Made by counterpoise try. Differences within the range of the rounds are called "same".',
    )
    return visible(page)


def _cards(report: Json) -> Iterator[Card]:
    yield Card("speed", "Loading", "measured", "", SPEED_HEADS, [*_speed_rows(report)])
    if report["better"]:
        better = [(change["change"], _describe_change(change)) for change in report["better"]]
        columns = ("change", "what it does")
        yield Card("better", "What would be better", "", "", columns, better, (), (0, 1))
    yield Card("notes", "Notes", "", "", notes=report["notes"])


def _parts(report: Json, name: str) -> list[Part]:
    """Return the parts of a step, in units of torch's."""
    step, whole = report["steps"][name], report["steps"].get(TORCH, report["steps"][name])
    unit = step["ms"] / whole["ms"]
    shares = (
        ("work", "--work", 1 - step["ranks"] - step["data"]),
        ("ranks wait for each other", "--waiting", step["ranks"]),
        ("ranks wait for data", "--padding", step["data"]),
    )
    return [Part(word, colour, unit * share) for word, colour, share in shares if share > 0.001]
