"""The command `counterpoise prepare`: writes tar shards, or indexes and costs for data as it is."""

import errno
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress
from rich.table import Table

from ...workers.sources.cache_files import replace_file
from ...workers.sources.data_identity import KnownData
from ...workers.sources.failures import SkippedSample
from ...workers.sources.interface import Source
from ...workers.tar.dataset import TarDataset
from ..analyze.scan.measure import count_samples, measure_task
from ..analyze.scan.rows import Failure
from ..analyze.scan.sources import (
    ScanOptions,
    ScanTask,
    find_tasks,
    make_transform,
    open_shard,
)
from ..console.reporting import emit, live_progress
from ..inputs.programs import with_options
from ..runners import Runner, on_cores, on_ray
from .log import PreparationLog, open_log
from .shards import (
    Given,
    ShardTask,
    check_keys,
    open_source,
    plan_shards,
    verify_shards,
    write_shard,
)

FORMAT = 1
LETTERS = "dead-letters.jsonl"
COUNT = click.IntRange(min=1)
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "MIB": 2**20, "GIB": 2**30}
_OPTIONS = (
    click.option(
        "--out", type=click.Path(path_type=Path), metavar="DIR",
        help="Folder for the shards: a new one, or that of a run that did not end.",
    ),
    click.option(
        "--index-only", is_flag=True,
        help="Write no shards: keep indexes, and with --transform costs, of data as they are.",
    ),
    click.option(
        "--samples-per-shard", type=COUNT, help="Samples in a shard.  [default: by --shard-size]"
    ),
    click.option(
        "--shard-size", default="512MB", show_default=True, metavar="BYTES",
        help="About the size of a shard: 256MB, 1GiB, 500000.",
    ),
    click.option("--workers", type=COUNT, help="Number of processes.  [default: all cores]"),
    click.option(
        "--ray", "ray_address", default="", metavar="ADDRESS", help="Run on a Ray cluster instead."
    ),
    click.option(
        "--transform", default="", metavar="MODULE:NAME",
        help="Your transform, as in training: keeps what its probe() says that samples cost.",
    ),
    click.option(
        "--verify", default=64, show_default=True, type=click.IntRange(min=0),
        help="Number of samples to read back and compare with the source.",
    ),
    click.option(
        "--on-error", default="raise", show_default=True, type=click.Choice(("raise", "skip")),
        help="skip: leave out samples that cannot be used, and say which in the dead-letter file.",
    ),
    click.option(
        "--dead-letter", type=click.Path(path_type=Path), metavar="FILE",
        help=f"File for samples that were left out.  [default: {LETTERS} in the folder]",
    ),
    click.option(
        "--cache", default="", metavar="FOLDER",
        help="Folder for indexes and costs.  [default: beside the shards]",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object."),
)  # fmt: skip


@click.command("prepare")
@click.argument("source", metavar="SOURCE")
@with_options(_OPTIONS)
def command(source: str, out: Path | None, as_json: bool, **given: Any) -> None:
    """Write tar shards with their index and costs from any source, or only index and costs.

    SOURCE is a tar shard, a folder, a glob or brace pattern of shards, or a map-style dataset as
    package.module:name, whose samples are dicts. A run that was interrupted or killed goes on when
    it is run again; the shards are the same, byte for byte.

    \b
    Example:
      counterpoise prepare my_data:dataset --out shards --shard-size 1GB
      counterpoise prepare shards/ --index-only --transform my_data:transform
    """  # noqa: D301
    began = time.perf_counter()
    if (out is None) != given["index_only"]:
        raise ValueError("give either --out DIR, for shards, or --index-only")
    transform = given["transform"]
    if transform:
        _check_transform(transform)
    cores = given["workers"] or len(os.sched_getaffinity(0))
    run = on_ray(given["ray_address"]) if given["ray_address"] else on_cores(cores)
    report: dict[str, Any] = {"source": source, "out": None}
    with live_progress() as progress:
        if out is not None:
            report |= _write(source, out, run, progress, given)
            report["out"] = source = str(out)
        if out is None or transform:
            report |= _keep(source, run, progress, given)
    report["seconds"] = time.perf_counter() - began
    emit(report, as_json, _table(report))


def _write(
    source: str, out: Path, run: Runner, progress: Progress, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Write what is missing of the shards, and compare some samples; return the report."""
    opened = open_source(source, given["cache"])
    shared = Given(source, given["on_error"] == "skip", given["cache"])
    out = out.absolute()
    with open_log(out) as log:
        starts = _planned(log, source, opened, given)
        ends = [*starts[1:], len(opened)]
        tasks = [
            ShardTask(str(out / f"{number:06d}.tar"), start, stop)
            for number, (start, stop) in enumerate(zip(starts, ends, strict=True))
        ]
        missing = [n for n, task in enumerate(tasks) if not _is_whole(log, n, Path(task.path))]
        bar = progress.add_task(
            "write", total=len(tasks), completed=len(tasks) - len(missing), live=""
        )
        try:
            for at, shard in run(write_shard, [tasks[number] for number in missing], shared):
                log.add(missing[at], shard)
                progress.advance(bar)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OSError(
                    f"{error.strerror}: {error.filename}; {len(log.finished)} of {len(tasks)} "
                    "shards are written: make room and run the same command again, to go on there"
                ) from None
            raise
        finally:
            left_out = _write_letters(log, given["dead_letter"] or out / LETTERS)
        written = TarDataset(out, cache=given["cache"] or None)
        verified = verify_shards(written, opened, tasks, left_out, given["verify"])
        log.end()
        return {
            "shards": len(tasks),
            "samples": len(written),
            "bytes": sum(shard.size for shard in log.finished.values()),
            "skipped": len(left_out),
            "verified": verified,
        }


def _planned(log: PreparationLog, text: str, source: Source, given: Mapping[str, Any]) -> list[int]:
    """Return the shards' first samples: as the log has them, or planned and written there."""
    dataset = getattr(source, "dataset", source)
    samples, size = given["samples_per_shard"], _parse_size(given["shard_size"])
    about: dict[str, Any] = {
        "prepare": FORMAT,
        "data": KnownData(dataset, len(source), source.key).looked_at().identity,
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
        check_keys(source)
        starts = plan_shards(source, samples, size)
        log.begin({**about, "source": text, "starts": starts})
    found: list[int] = log.about["starts"]
    return found


def _is_whole(log: PreparationLog, number: int, path: Path) -> bool:
    """Return whether a shard has been finished, and still has the size that it had."""
    shard = log.finished.get(number)
    try:
        return shard is not None and path.stat().st_size == shard.size
    except FileNotFoundError:
        return False


def _write_letters(log: PreparationLog, path: Path) -> set[int]:
    """Write the dead letters of the finished shards in order; return what was left out."""
    skipped = dict(each for shard in log.finished.values() for each in shard.skipped)
    if skipped:
        text = "".join(f"{skipped[index].line()}\n" for index in sorted(skipped))
        if not replace_file(path, text.encode()):
            raise OSError(f"{path} cannot be written; give another file with --dead-letter")
    return set(skipped)


def _keep(source: str, run: Runner, progress: Progress, given: Mapping[str, Any]) -> dict[str, Any]:
    """Make indexes, and with a transform costs, where they are not kept yet; return the report."""
    tasks = find_tasks((source,), lambda _: None)
    if others := [task for task in tasks if task.kind != "tar"]:
        raise ValueError(
            f"{others[0].paths[0]}: nothing can be kept beside it; `counterpoise analyze` makes a "
            "table of costs for a data set in Python, and prepare --out shards of it"
        )
    options = ScanOptions(transform_path=given["transform"], cache=given["cache"])
    function = measure_task if given["transform"] else count_samples
    bar = progress.add_task("costs" if given["transform"] else "index", total=len(tasks), live="")
    samples, failures, checked = 0, list[Failure](), False
    for number, found in run(function, tasks, options):
        progress.advance(bar)
        if not given["transform"]:
            samples += sum(max(0, count) for count in found)
            broken = [path for path, n in zip(tasks[number].paths, found, strict=True) if n < 0]
            failures += [Failure(path, path, "shard", "no tar, or cut off") for path in broken]
            continue
        samples += len(found)
        failures += found.failures
        if len(found) and not checked:
            _check_kept(tasks[number], options)
            checked = True
    if failures and given["on_error"] == "raise":
        first, count = failures[0], len(failures)
        raise ValueError(
            f"{count} of {samples + count} samples have no cost; the first is {first.key} of "
            f"{first.source}: {first.reason}. The others are kept; --on-error skip is content then"
        )
    if failures and given["dead_letter"] is not None:
        letters = [SkippedSample(each.key, each.reason, "data", each.source) for each in failures]
        replace_file(given["dead_letter"], "".join(f"{each.line()}\n" for each in letters).encode())
    if not given["transform"]:
        return {"indexed": samples}
    return {"costs": samples, "without_cost": len(failures)}


def _check_kept(task: ScanTask, options: ScanOptions) -> None:
    """Raise OSError where what has been measured was not kept."""
    for path in task.paths:
        shard = open_shard(Path(path), options, TarDataset)
        if any(shard.known(index) is not None for index in range(len(shard))):
            return
    raise OSError(f"costs of {task.paths[0]} could not be written; give a folder with --cache")


def _check_transform(path: str) -> None:
    """Raise ValueError for a transform whose costs nobody can keep."""
    transform = make_transform(ScanOptions(transform_path=path))
    missing = [name for name in ("probe", "fingerprint") if not hasattr(transform, name)]
    if missing:
        raise ValueError(
            f"{path} has no {' and no '.join(missing)}: probe(raw) says what a sample costs, "
            "undecoded, and fingerprint() under which name to keep that; see docs/data.md"
        )


def _parse_size(text: str) -> int:
    """Return a number of bytes.

    >>> _parse_size("256MB"), _parse_size("1.5 GiB"), _parse_size("1000")
    (256000000, 1610612736, 1000)
    """
    found = re.fullmatch(r"\s*([0-9]+(?:[.][0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None or (size := int(float(found[1]) * unit)) < 1:
        raise ValueError(f"--shard-size {text!r}: write 256MB, 1GiB or a number of bytes")
    return size


def _table(report: Mapping[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    names = {
        "out": "shards in",
        "shards": "shards",
        "samples": "samples",
        "bytes": "bytes",
        "skipped": "left out",
        "verified": "compared with the source",
        "indexed": "samples indexed",
        "costs": "samples whose costs are kept",
        "without_cost": "samples without a cost",
    }
    for name, shown in names.items():
        value = report.get(name)
        if value is not None:
            table.add_row(shown, f"{value:,}" if isinstance(value, int) else str(value))
    return table
