"""The command `counterpoise analyze`: forecasts waiting on a data set and recommends settings."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table
from rich.text import Text

from ...workers.sources.cache_files import replace_file
from ...workers.sources.urls import is_url, shown
from ..console.commands import COUNT, FILE, Command, json_option
from ..console.reporting import emit, live_progress, make_table
from ..inputs.programs import check_sizes, parse_amounts
from ..runners import Runner, runner_options
from .document import headline, plan_rows, render_page
from .report import Json, LoopNow, make_report
from .scan.rows import Rows
from .scan.run import scan_sources
from .scan.sources import ScanOptions, reads_samples

OUT, BALANCE = Path("counterpoise-analysis"), "balance.json"


@click.command(
    "analyze", cls=Command,
    usual=("--out", "--ranks", "--accumulate", "--batch-size", "--layout", "--transform"),
)  # fmt: skip
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "--out", default=OUT, show_default=True, type=FILE,
    help="Folder for report.html, report.json, balance.json, index.npz and the saved parts.",
)  # fmt: skip
@click.option("--samples", type=COUNT, help="Measure only so many samples, drawn at random.")
@click.option("--decode", is_flag=True, help="Also decode every sample: finds damaged images.")
@runner_options
@click.option("--ranks", default=8, show_default=True, type=COUNT, help="Data-parallel ranks.")
@click.option(
    "--accumulate", default=4, show_default=True, type=COUNT, help="Microbatches per rank and step."
)
@click.option(
    "--batch-size", default=4, show_default=True, type=COUNT,
    help="Samples in a microbatch of your loop now.",
)  # fmt: skip
@click.option(
    "--layout", default="padded", show_default=True, type=click.Choice(("padded", "packed")),
    help="Layout of your loop's microbatches now.",
)  # fmt: skip
@click.option(
    "--budget", "budgets", multiple=True, metavar="RESOURCE=AMOUNT",
    help="The most of a cost in a microbatch; repeat.  [default: recommended]",
)  # fmt: skip
@click.option(
    "--transform", "transform_path", default="", metavar="MODULE:NAME",
    help="Your transform of raw samples instead of VisionLanguage.",
)  # fmt: skip
@click.option(
    "--cost", "cost_path", default="", metavar="MODULE:NAME",
    help="A function of a loaded sample to its cost; all are loaded.",
)  # fmt: skip
@click.option(
    "--resource", "resources", multiple=True, metavar="NAME",
    help="A cost to analyze: a column of a table, or a cost that all sources have; repeat.",
)  # fmt: skip
@click.option("--cache", default="", metavar="FOLDER", help="Folder for indexes and costs.")
@json_option
def command(
    sources: tuple[str, ...], out: Path, samples: int | None, run: Runner, ranks: int,
    accumulate: int, batch_size: int, layout: Any, budgets: tuple[str, ...], as_json: bool,
    **scan_options: Any,
) -> None:  # fmt: skip
    """Forecast how much of a training step is waiting on this data, and recommend settings.

    SOURCE is a tar shard or a file of records (JSONL, JSON), a folder, a glob or brace pattern of
    them, a URL of shards (s3://bucket/train/), a table of costs (npz, jsonl, parquet, or the
    index.npz of an earlier analysis), or a map-style dataset as package.module:name. Only headers
    are read, unless --decode is given. An interrupted scan continues from its saved parts when it
    is run again with the same --out.

    \b
    Example:
      counterpoise analyze shards/ --ranks 32 --out analysis
      counterpoise analyze 'shards/{000..127}.tar' --samples 20000 --json
      counterpoise analyze costs.npz --budget tiles=9 --budget tokens=4096
    """  # noqa: D301
    began = time.perf_counter()
    check_sizes(ranks=ranks, accumulate=accumulate)
    check_sizes(batch_size=batch_size)
    loop = LoopNow(ranks, accumulate, batch_size, layout)
    limits = parse_amounts("--budget", budgets, least=1)
    named = [shown(source) if is_url(source) else source for source in sources]
    with live_progress() as progress:
        options = ScanOptions(**scan_options)
        rows, total, costs_found = scan_sources(
            sources, options, out / "parts", run, progress, samples or 0
        )
        if not total:
            raise ValueError(f"{', '.join(named)}: there is no sample in it; give one or more")
        planning = progress.add_task("plan", total=None, live="")
        report = {"inputs": named, **make_report(rows, total, loop, limits)}
        progress.update(planning, total=1, completed=1)
    reads = not options.transform_path and any(reads_samples(source) for source in sources)
    report["bytes_as_tokens"] = reads and "tokens" in rows.resources
    report |= {"seconds": time.perf_counter() - began, "costs_found": costs_found}
    if costs_found:
        report["recommended"]["settings"] = _add_table(report, rows, out)
    _write(out, rows, report)
    emit(report, as_json, *_tables(report, out))


def _add_table(report: Json, rows: Rows, out: Path) -> str:
    """Return the settings for data that do not say what samples cost: a loader needs a table."""
    head, loader = report["recommended"]["settings"].rsplit("loader = ", 1)
    comment = f"# nothing says what samples cost; found were: {report['costs_found']}\n"
    if len(rows) < report["samples"]:
        return f"{comment}# not all were measured: give DataLoader a cost=\n{head}loader = {loader}"
    names = ", ".join(map(json.dumps, rows.resources))
    table = f"table = numpy.load({json.dumps(str(out / 'index.npz'))})\n"
    cost = f"cost={{name: table[name] for name in ({names},)}}"
    loader = loader.replace("balance=balance)", f"balance=balance,\n                    {cost})")
    return f"{comment}import numpy\n\n{head}{table}loader = {loader}"


def _write(out: Path, rows: Rows, report: Json) -> None:
    out.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {name: rows.column(name) for name in rows.resources}
    index |= {"source": rows.source_of, "sources": np.array(rows.sources)}
    if rows.keys:
        index["key"] = np.array(rows.keys)
    np.savez_compressed(out / "index.npz", **index)
    files = {
        "report.json": json.dumps(report, indent=1),
        "report.html": render_page(report),
        BALANCE: json.dumps(report["recommended"]["balance"], indent=2) + "\n",
    }
    for name, text in files.items():
        if not replace_file(out / name, text.encode()):
            raise OSError(f"{out / name} could not be written; choose another folder with --out")


def _tables(report: Json, out: Path) -> Iterator[Table]:
    """Yield the plans, and last the settings to paste and where the files are."""
    heads, rows = plan_rows(report)
    plans = make_table(headline(report), *heads, title_justify="left")
    for row in rows:
        plans.add_row(*row)
    yield plans
    table = Table(box=None, show_header=False, pad_edge=False)
    advice = "Settings if you balance anyway:" if report["leave_off"] else "Settings to paste:"
    table.add_row(Text(advice, style="bold"))
    table.add_row(Text(report["recommended"]["settings"].rstrip()))
    table.add_row(Text(f"\nThe same for Balance.load: {out / BALANCE}", style="dim"))
    table.add_row(Text(f"The page: {out / 'report.html'}", style="dim"))
    yield table
