"""The command `counterpoise analyze`: forecasts waiting on a data set and recommends settings."""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.progress import Progress

from ...balancer.planning.problem.options import MODES
from ...sched.shapes import ParallelLayout, read_device, read_model
from ...workers.sources.cache_files import replace_file
from ...workers.sources.urls import is_url, shown
from ..console.reporting import emit, live_progress
from ..inputs.cost_tables import parse_budgets
from ..inputs.models import device_option, memory_limit, model_option, size_option
from ..inputs.programs import Command, check_sizes, with_options
from ..runners import on_cores, on_ray
from .model.pipelines import DEFAULT_MODEL, PipelineMachine, tile_tokens
from .model.report import Json, ReportOptions, make_report
from .model.strategies import Plan
from .page.document import render_page
from .printed import BALANCE, report_tables
from .scan.rows import Rows
from .scan.run import scan_all
from .scan.sources import ScanOptions, find_tasks, reads_samples, with_found_costs

OUT = Path("counterpoise-analysis")
# What must be in a file of a run.
NEEDED = ("rank", "steps", "samples", "wait_share", "padding_share", "waiting", "holes")
COUNT = click.IntRange(min=1)


def _count(name: str, what: str, default: int | None = None) -> Callable[[Command], Command]:
    """Return an option whose value is a number of 1 or more."""
    shown = default is not None
    return click.option(f"--{name}", type=COUNT, default=default, show_default=shown, help=what)


def _text(name: str, form: str, what: str, argument: str = "") -> Callable[[Command], Command]:
    """Return an option whose value is a text, by default an empty one; form: how it is written."""
    argument = argument or name.replace("-", "_")
    return click.option(f"--{name}", argument, default="", metavar=form, help=what)


def _choice(name: str, default: str, what: str, *allowed: str) -> Callable[[Command], Command]:
    """Return an option whose value is one of a few."""
    kind = click.Choice(allowed)
    return click.option(f"--{name}", default=default, show_default=True, type=kind, help=what)


_OPTIONS: tuple[Any, ...] = (
    click.option(
        "--out", default=OUT, show_default=True, type=click.Path(path_type=Path),
        help="Folder for report.html, report.json, balance.json, index.npz and the saved parts.",
    ),
    _count("sample", "Measure only this many samples, drawn at random."),
    click.option("--decode", is_flag=True, help="Also decode every sample: finds damaged images."),
    _count("jobs", "Number of scanning processes.  [default: all cores]"),
    _text("ray", "ADDRESS", "Scan on a Ray cluster instead.", "ray_address"),
    _count("ranks", "Data-parallel ranks.", 8),
    _count("accumulate", "Microbatches per rank and step.", 4),
    _count("batch-size", "Samples in a microbatch of your loop now.", 4),
    _count("samples-per-step", "Global batch.  [default: ranks x accumulate x batch size]"),
    _choice(
        "mode", "auto", "Contract of a step's samples; auto recommends exact or window.",
        "auto", *MODES,
    ),
    click.option(
        "--budget", "budgets", multiple=True, metavar="NAME=MOST",
        help="The most of a cost in a microbatch; give one for each cost.  [default: recommended]",
    ),
    _choice("layout", "padded", "Layout of your loop's microbatches now.", "padded", "packed"),
    _count("tile-tokens", "Tokens of the LLM that cost as much as a tile.  [default: by model]"),
    model_option(DEFAULT_MODEL),
    device_option(),
    size_option("--pp", "Pipeline stages, to model memory and schedules.", 4),
    size_option("--tp", "Tensor-parallel GPUs of a stage.", 8),
    click.option("--memory-gb", type=float, help="GB of a GPU that may be used.  [92 % of it]"),
    _count("part", "Plan a random part of at most this many samples.", 65_536),
    click.option("--seed", default=0, show_default=True, help="Seed of samples and plans."),
    _count("tile-size", "Pixels of a tile.", 448),
    _count("max-tiles", "The most tiles of an image.", 12),
    _count("tokens-per-tile", "Tokens of a tile.", 256),
    _count("max-tokens", "Longest sample that the transform makes."),
    _text("tokenizer", "MODULE:NAME", "Tokenizer of the transform.  [default: a byte is a token]"),
    click.option(
        "--image-token-id", type=click.IntRange(min=0),
        help="As in training, so that it can use the costs kept here; changes no figure.",
    ),
    _text("transform", "MODULE:NAME", "Your transform of raw samples instead of VisionLanguage."),
    _text("cost", "MODULE:NAME", "A function of a loaded sample to its cost; all are loaded."),
    click.option(
        "--resource", "resources", multiple=True, metavar="NAME",
        help="A cost to analyze: a column of a table, or a cost that all sources have; repeat.",
    ),
    click.option(
        "--source-field", default="source", show_default=True,
        help="Field of a sample's JSON that names its source.",
    ),
    _text("cache", "FOLDER", "Folder for indexes and costs."),
    click.option(
        "--beside", multiple=True, metavar="RUN.json", help="A file of DataLoader(keep_stats=...): "
        "what happened beside the forecast; one for each process.",
        type=click.Path(path_type=Path),
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object."),
)  # fmt: skip


@click.command("analyze")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@with_options(_OPTIONS)
def command(sources: tuple[str, ...], out: Path, as_json: bool, **given: Any) -> None:
    """Forecast how much of a training step is waiting on this data, and recommend settings.

    SOURCE is a tar shard or a file of records (JSONL, JSON), a folder, a glob or brace pattern of
    them, a URL of shards (s3://bucket/train/), a table of costs (npz, jsonl, parquet, or the
    index.npz of an earlier analysis), or a map-style dataset as package.module:name. Only headers
    are read, unless --decode is given. An interrupted scan continues from its saved parts when it
    is run again with the same --out.

    \b
    Example:
      counterpoise analyze shards/ --ranks 32 --out analysis
      counterpoise analyze 'shards/{000..127}.tar' --sample 20000 --json
      counterpoise analyze costs.npz --budget tiles=9 --budget tokens=4096
    """  # noqa: D301
    began = time.perf_counter()
    options = _report_options(sources, given)
    happened = _read_runs(given["beside"]) if given["beside"] else None
    named = [shown(source) if is_url(source) else source for source in sources]
    with live_progress() as progress:
        rows, total, found_costs = _scan(sources, out, given, progress)
        if not total:
            raise ValueError(f"{', '.join(named)}: there is no sample in it; give one or more")
        task = progress.add_task("plan", total=None, live="")

        def begin(stage: str, number: int, of: int) -> None:
            progress.update(task, live=stage, completed=number, total=of)

        report = make_report(rows, total, options, begin)
        progress.update(task, completed=progress.tasks[-1].total, live="")
    report = {"inputs": named, **report, "seconds": time.perf_counter() - began}
    report["costs_found"], report["beside"] = found_costs, happened
    if found_costs:
        report["recommended"]["settings"] = _with_table(report, rows, out)
    _write(out, rows, report)
    emit(report, as_json, *report_tables(report, out))


def _report_options(sources: tuple[str, ...], given: dict[str, Any]) -> ReportOptions:
    each = given["ranks"] * given["batch_size"]
    microbatches = (given["samples_per_step"] or 0) // each + 1
    check_sizes(ranks=given["ranks"], accumulate=max(given["accumulate"], microbatches))
    check_sizes(pp=given["pp"], microbatches=2 * given["pp"])
    model, device = read_model(given["model"]), read_device(given["device"])
    plan = Plan(
        ranks=given["ranks"],
        accumulate=given["accumulate"],
        batch_size=given["batch_size"],
        samples=given["samples_per_step"] or 0,
        layout=given["layout"],
        tile_tokens=given["tile_tokens"] or tile_tokens(model),
        seed=given["seed"],
    )
    return ReportOptions(
        plan=plan,
        mode=given["mode"],
        budgets=tuple(parse_budgets(given["budgets"]).items()),
        part=given["part"],
        machine=PipelineMachine(
            model,
            device,
            ParallelLayout(tp=given["tp"], pp=given["pp"], dp=given["ranks"]),
            memory_limit(given["memory_gb"], device),
        ),
        bytes_as_tokens=not given["tokenizer"]
        and not given["transform"]
        and any(reads_samples(source) for source in sources),
    )


def _scan(
    sources: tuple[str, ...], out: Path, given: dict[str, Any], progress: Progress
) -> tuple[Rows, int, str]:
    listing = progress.add_task("list", total=None, live="")
    tasks = find_tasks(sources)
    progress.update(listing, total=1, completed=1)
    names = ("tile_size", "max_tiles", "tokens_per_tile", "max_tokens", "image_token_id")
    transform: dict[str, Any] = {name: given[name] for name in names}
    if given["tokenizer"]:
        transform["tokenizer"] = given["tokenizer"]
    options = ScanOptions(
        transform=tuple(transform.items()),
        transform_path=given["transform"],
        cost_path=given["cost"],
        resources=tuple(given["resources"]),
        decode=given["decode"],
        source_field=given["source_field"],
        cache=given["cache"],
    )
    options = with_found_costs(tasks, options)
    address = given["ray_address"]
    run = on_ray(address) if address else on_cores(given["jobs"] or len(os.sched_getaffinity(0)))
    scanning = progress.add_task("scan", total=None, live="")

    def show(finished: int, pieces: int) -> None:
        progress.update(scanning, completed=finished, total=pieces)

    few, seed = given["sample"] or 0, given["seed"]
    rows, total = scan_all(tasks, options, out / "parts", run, few, seed, show)
    return rows, total, "" if options.found is None else options.found.describe()


def _with_table(report: Json, rows: Rows, out: Path) -> str:
    """Return the settings for data that do not say what samples cost: a loader needs a table."""
    head, loader = report["recommended"]["settings"].rsplit("loader = ", 1)
    told = f"# nothing says what samples cost; found were: {report['costs_found']}\n"
    if len(rows) < report["samples"]:
        return f"{told}# not all were measured: give DataLoader a cost=\n{head}loader = {loader}"
    names = ", ".join(map(json.dumps, rows.resources))
    table = f"table = numpy.load({json.dumps(str(out / 'index.npz'))})\n"
    cost = f"cost={{name: table[name] for name in ({names},)}}"
    loader = loader.replace("balance=balance)", f"balance=balance,\n                    {cost})")
    return f"{told}import numpy\n\n{head}{table}loader = {loader}"


def _write(out: Path, rows: Rows, report: Json) -> None:
    out.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {name: rows.column(name) for name in rows.resources}
    index |= {"nbytes": rows.nbytes, "source": rows.source_of, "sources": np.array(rows.sources)}
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


def _read_runs(paths: Sequence[Path]) -> Json:
    """Return what happened, of the files of a run's processes; ValueError for other files."""
    runs = []
    for path in paths:
        try:
            runs.append(json.loads(path.read_text()))
            missing = [name for name in NEEDED if name not in runs[-1]]
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is no file of DataLoader(keep_stats=...): {error}") from error
        if missing:
            raise ValueError(f"{path} is no file of DataLoader(keep_stats=...): no {missing[0]!r}")
    steps = max(run["steps"] for run in runs)
    return {
        "processes": len(runs),
        "steps": steps,
        "samples_per_step": sum(run["samples"] for run in runs) / max(1, steps),
        "waiting": max((run["waiting"] for run in runs), key=len),
        "padding": max((run["padding_share"] for run in runs), key=len),
        "wait_for_data": max(run["wait_share"] for run in runs),
        "holes": sum(sum(run["holes"].values()) for run in runs),
    }
