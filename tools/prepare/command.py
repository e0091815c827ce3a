"""The command `counterpoise prepare`: writes tar shards, or indexes and costs for data as it is."""

import errno
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress
from rich.table import Table

from ...workers.mixture.mixture import Mixture
from ...workers.sources.cache_files import replace_file
from ...workers.sources.data_identity import KnownData
from ...workers.sources.failures import SkippedSample
from ...workers.sources.interface import Source
from ...workers.sources.plain import unwrap_dataset
from ...workers.sources.urls import SCHEME
from ...workers.tar.dataset import TarDataset
from ..analyze.scan.measure import measure_task
from ..analyze.scan.rows import Failure
from ..analyze.scan.run import whole_pieces
from ..analyze.scan.sources import (
    ScanOptions,
    ScanTask,
    find_tasks,
    is_import_path,
    make_transform,
    open_dataset,
)
from ..console.commands import COUNT, FILE, Command, json_option
from ..console.reporting import emit, live_progress
from ..runners import Runner, runner_options
from .log import PreparationLog, open_log
from .shards import (
    ShardTask,
    SourceOptions,
    check_source,
    open_source,
    plan_shards,
    verify_shards,
    write_shard,
)

FORMAT = 1
LETTERS = "dead-letters.jsonl"
MB = 10**6


@click.command(
    "prepare", cls=Command,
    usual=("--out", "--index-only", "--transform", "--samples-per-shard", "--shard-size"),
)  # fmt: skip
@click.argument("source", metavar="SOURCE")
@click.option(
    "--out", type=FILE, metavar="DIR",
    help="Folder for the shards: a new one, or that of a run that did not end.",
)  # fmt: skip
@click.option(
    "--index-only", is_flag=True,
    help="Write no shards: keep index and costs, by --transform, of data as they are.",
)  # fmt: skip
@click.option(
    "--samples-per-shard", type=COUNT, help="Samples in a shard.  [default: by --shard-size]"
)
@click.option(
    "--shard-size", default=512.0, show_default=True, metavar="MB",
    type=click.FloatRange(min=0, min_open=True), help="About the size of a shard.",
)  # fmt: skip
@runner_options
@click.option(
    "--transform", default="", metavar="MODULE:NAME",
    help="Your transform, as in training: keeps what its probe() says that samples cost.",
)  # fmt: skip
@click.option(
    "--verify", default=64, show_default=True, type=click.IntRange(min=0),
    help="Number of samples to read back and compare with the source.",
)  # fmt: skip
@click.option(
    "--on-error", default="raise", show_default=True, type=click.Choice(("raise", "skip")),
    help="skip: leave out samples that cannot be used, and say which in the dead-letter file.",
)  # fmt: skip
@click.option(
    "--dead-letter", type=FILE, metavar="FILE",
    help=f"File for samples that were left out.  [default: {LETTERS} in the folder]",
)  # fmt: skip
@click.option(
    "--cache", default="", metavar="FOLDER",
    help="Folder for indexes and costs.  [default: beside the shards]",
)  # fmt: skip
@json_option
def command(
    source: str, out: Path | None, run: Runner, as_json: bool, **options: Any
) -> None:  # fmt: skip
    """Write tar shards with their index and costs from any source, or only index and costs.

    SOURCE is a file of samples (a tar shard, JSONL, JSON, ...), a folder, a glob or brace pattern
    of them, or a map-style dataset as package.module:name, whose samples are dicts. A run that was
    interrupted or killed goes on when it is run again; the shards are the same, byte for byte.

    \b
    Example:
      counterpoise prepare my_data:dataset --out shards --shard-size 1000
      counterpoise prepare shards/ --index-only --transform my_data:transform
    """  # noqa: D301
    began = time.perf_counter()
    transform = options["transform"]
    if (out is None) != options["index_only"] or (out is None and not transform):
        raise ValueError("give either --out DIR, for shards, or --index-only and --transform")
    if transform:
        _check_transform(transform)
    report: dict[str, Any] = {"source": source}
    with live_progress() as progress:
        if out is not None:
            report |= _write(source, out, run, progress, options)
            report["out"] = source = str(out)
        if out is None or transform:
            report |= _keep_costs(source, run, progress, options)
    report["seconds"] = time.perf_counter() - began
    emit(report, as_json, _table(report))


def _write(
    source: str, out: Path, run: Runner, progress: Progress, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Write what is missing of the shards, and compare some samples; return the report."""
    if SCHEME.match(str(out).replace(":/", "://", 1)):
        raise ValueError(f"--out {out}: give a local folder, and upload it as it is")
    opened = open_source(source, options["cache"])
    if isinstance(unwrap_dataset(opened), Mixture):
        raise ValueError(f"{source} is a mixture, which is an order: prepare its sources")
    planning = progress.add_task("plan", total=None, live="")
    shared = SourceOptions(source, options["on_error"] == "skip", options["cache"])
    out = out.absolute()
    with open_log(out) as log:
        starts = _plan_starts(log, source, opened, options)
        progress.update(planning, total=1, completed=1)
        ends = [*starts[1:], len(opened)]
        tasks = [
            ShardTask(number, str(out / f"{number:06d}.tar"), start, stop)
            for number, (start, stop) in enumerate(zip(starts, ends, strict=True))
        ]
        missing = [task for task in tasks if not _is_whole(log, task)]
        bar = progress.add_task(
            "write", total=len(tasks), completed=len(tasks) - len(missing), live=""
        )
        try:
            for _, shard in run(write_shard, missing, shared):
                log.add(shard)
                progress.advance(bar)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OSError(
                    f"{error.strerror}: {error.filename}; {len(log.finished)} of {len(tasks)} "
                    "shards are written: make room and run the same command again, to go on there"
                ) from None
            raise
        finally:
            left_out = dict(letter for shard in log.finished.values() for letter in shard.skipped)
            letters = [left_out[index] for index in sorted(left_out)]
            _write_letters(options["dead_letter"] or out / LETTERS, letters)
        written = TarDataset(out, cache=options["cache"] or None)
        verified = verify_shards(written, opened, tasks, left_out.keys(), options["verify"])
        log.end()
        return {
            "shards": len(tasks),
            "samples": len(written),
            "bytes": sum(shard.size for shard in log.finished.values()),
            "left_out": len(left_out),
            "compared": verified,
        }


def _plan_starts(
    log: PreparationLog, text: str, source: Source, options: Mapping[str, Any]
) -> list[int]:
    """Return the shards' first samples: as the log has them, or planned and written there."""
    samples, size = options["samples_per_shard"], int(options["shard_size"] * MB)
    about: dict[str, Any] = {
        "prepare": FORMAT,
        "data": KnownData(unwrap_dataset(source), len(source), source.key)
        .look_at_samples()
        .identity,
        "samples": len(source),
        "split": {"samples": samples} if samples is not None else {"bytes": size},
    }
    for name, value in about.items() if log.about else ():
        if log.about.get(name) != value:
            raise ValueError(
                f"{log.folder} was begun with {name} {log.about.get(name)}, and now it is {value}: "
                "run the same command on the same data, or give another --out"
            )
    if not log.about:
        check_source(source)
        starts = plan_shards(source, samples, size)
        log.begin({**about, "source": text, "starts": starts})
    first_samples: list[int] = log.about["starts"]
    return first_samples


def _is_whole(log: PreparationLog, task: ShardTask) -> bool:
    """Return whether a shard has been finished, and still has the size that it had."""
    shard, path = log.finished.get(task.number), Path(task.path)
    return shard is not None and path.exists() and path.stat().st_size == shard.size


def _write_letters(path: Path, letters: Sequence[SkippedSample]) -> None:
    text = "".join(f"{letter.line()}\n" for letter in letters)
    if letters and not replace_file(path, text.encode()):
        raise OSError(f"{path} cannot be written; give another file with --dead-letter")


def _keep_costs(
    source: str, run: Runner, progress: Progress, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Make index and costs, where they are not kept yet; return the report."""
    scan = ScanOptions(transform_path=options["transform"], cache=options["cache"])
    source_tasks = find_tasks((source,))
    if is_import_path(source) or any(task.kind == "table" for task in source_tasks):
        raise ValueError(
            f"{source}: no costs are kept of tables and of data sets in Python; name the files of "
            "samples, prepare --out shards, or let `counterpoise analyze` make a table of costs"
        )
    tasks = whole_pieces(source_tasks, scan)
    bar = progress.add_task("costs", total=len(tasks), live="")
    samples, failures = 0, list[Failure]()
    for number, rows in run(measure_task, tasks, scan):
        progress.advance(bar)
        if len(rows) and not samples:
            _check_kept(tasks[number], scan)
        samples += len(rows)
        failures += rows.failures
    if failures and options["on_error"] == "raise":
        first, count = failures[0], len(failures)
        raise ValueError(
            f"{count} of {samples + count} samples have no cost; the first is {first.key} of "
            f"{first.source}: {first.reason}. The others are kept; --on-error skip is content then"
        )
    if options["dead_letter"] is not None:
        letters = [
            SkippedSample(failure.key, failure.reason, "data", failure.source)
            for failure in failures
        ]
        _write_letters(options["dead_letter"], letters)
    return {"costs_kept": samples, "without_cost": len(failures)}


def _check_kept(task: ScanTask, options: ScanOptions) -> None:
    """Raise OSError where what has been measured was not kept."""
    for path in task.paths:
        with suppress(ValueError):  # it is among the failures
            source = copy(open_dataset(path, options))  # which has read no costs yet
            rows = range(task.start, task.stop or len(source))
            if any(source.known(index) is not None for index in rows):
                return
    raise OSError(f"costs of {task.paths[0]} could not be written; give a folder with --cache")


def _check_transform(path: str) -> None:
    """Raise ValueError for a transform whose costs cannot be kept."""
    transform = make_transform(ScanOptions(transform_path=path))
    missing = [name for name in ("probe", "fingerprint") if not hasattr(transform, name)]
    if missing:
        raise ValueError(
            f"{path} has no {' and no '.join(missing)}: probe(raw) says what a sample costs, "
            "undecoded, and fingerprint() under which name to keep it: see "
            "docs/guides/transforms.md"
        )


def _table(report: Mapping[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in report.items():
        table.add_row(name.replace("_", " "), f"{value:,}" if type(value) is int else str(value))
    return table
