"""`counterpoise bench images`: CPU time from JPEG shards to batches, by pipeline.

Some samples of real shards are copied, so that all pipelines read the same ones, and each pipeline
has a process tree of its own. They take turns, and of each pass the CPU time of the whole tree
counts: trainer, workers and whatever else. A first pass, which is not counted, checks that all
pipelines with the same resizer give the same pictures. `alone` is decoding and resizing and nothing
else, of bytes in memory, in as many processes as others have workers: cores that share a cache, or
are two threads of one, take longer for each. `threads` is `balanced` with one worker, and in it as
many threads that decode as others have workers; it is compared with `balanced` in each round.
"""

import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import click
from rich.progress import Progress
from rich.table import Table

from ..console.reporting import emit, progress_console
from ..console.spread import spread
from ..demo.data import ensure_demo_data
from .energon import why_no_energon
from .image_pipelines import ImagePass, ImageWork, copy_samples, serve
from .processes import MeasuredProcess

# Pipelines by name, and how each resizes.
OURS = {"balanced": "torch", "threads": "torch", "balanced, pillow": "pillow", "plain": "torch"}
TORCHS = {"DataLoader": "pillow", "webdataset": "pillow", "energon": "pillow"}
ALONE = {"alone": "torch", "alone, pillow": "pillow"}
PIPELINES = {**OURS, **TORCHS, **ALONE}


@click.command("images")
@click.option("--data", metavar="PATTERN", help="Tar shards; default: the demo's own data.")
@click.option("--samples", type=click.IntRange(8), default=128, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=8, show_default=True)
@click.option("--tile-size", type=click.IntRange(16), default=448, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    data: str | None,
    samples: int,
    rounds: int,
    workers: int,
    batch_size: int,
    tile_size: int,
    as_json: bool,
) -> None:
    r"""Compare CPU time per sample with torch's DataLoader and webdataset, on images.

    \b
    Example:
      counterpoise bench images --data '/data/*.tar' --rounds 10 --json
    """
    with tempfile.TemporaryDirectory(prefix="counterpoise-bench-") as folder:
        copy_samples(data or ensure_demo_data(), samples, max(2, workers), folder)
        work = ImageWork(folder, batch_size, workers, tile_size)
        left_out = why_not_all()
        names = [name for name in PIPELINES if name not in left_out]
        passes: dict[str, list[ImagePass]] = {name: [] for name in names}
        with Progress(console=progress_console, transient=True) as progress:
            task = progress.add_task("passes", total=len(names) * (rounds + 1))
            for name, found in _measure(work, names, rounds):
                progress.advance(task)
                if found is not None:
                    passes[name].append(found)
    report = {
        "samples": samples,
        "rounds": rounds,
        "workers": workers,
        "batch_size": batch_size,
        "tile_size": tile_size,
        "load_average": os.getloadavg()[0],
        "left_out": left_out,
        **figures(passes),
    }
    emit(report, as_json, _as_table(report))


def why_not_all() -> dict[str, str]:
    """Return the pipelines that cannot take part here, and why."""
    why_not = why_no_energon()
    return {"energon": why_not} if why_not else {}


def _measure(
    work: ImageWork, names: Sequence[str], rounds: int
) -> Iterator[tuple[str, ImagePass | None]]:
    """Yield (pipeline, pass) in turns; None for the first pass of each."""
    systems = {
        name: MeasuredProcess(serve, name.split(",")[0], work, PIPELINES[name]) for name in names
    }
    try:
        pictures: dict[str, str] = {}
        for name, system in systems.items():
            found, resize = system.ask("run").pictures, PIPELINES[name]
            if pictures.setdefault(resize, found) != found:
                raise RuntimeError(f"{name} gives other pictures than the others with {resize}")
            yield name, None
        for number in range(rounds):
            turn = number % len(systems)
            for name in [*systems][turn:] + [*systems][:turn]:
                yield name, systems[name].ask("run")
    finally:
        for system in systems.values():
            system.close()


def figures(passes: Mapping[str, list[ImagePass]]) -> dict[str, Any]:
    """Return each pipeline's CPU time a sample, over the best of torch's, and over its resizing.

    `over_best` compares all processes, `over_alone` all but trainer and balancer, in each round.
    """
    best = min(
        passes.keys() & TORCHS,
        key=lambda name: statistics.median(each.all_us for each in passes[name]),
    )
    alone = {PIPELINES[name]: name for name in ALONE}
    found: dict[str, Any] = {}
    for name, mine in passes.items():
        found[name] = {
            "resize": PIPELINES[name],
            "samples_per_s": statistics.median(each.rate for each in mine),
            **{
                part: statistics.median(getattr(each, part) for each in mine)
                for part in ("all_us", "trainer_us", "balancer_us", "workers_us")
            },
            "over_best": spread(
                [a.all_us / b.all_us for a, b in zip(mine, passes[best], strict=True)]
            ),
        }
        # What workers add to decoding and resizing, which ALONE does and nothing else.
        if name not in ALONE:
            bare = passes[alone[PIPELINES[name]]]
            found[name]["over_alone"] = spread(
                [a.workers_us / b.workers_us for a, b in zip(mine, bare, strict=True)]
            )
    pairs = list(zip(passes["threads"], passes["balanced"], strict=True))
    beside = {
        "cpu": spread([a.all_us / b.all_us for a, b in pairs]),
        "samples_per_s": spread([a.rate / b.rate for a, b in pairs]),
    }
    return {"best": best, "pipelines": found, "threads_over_processes": beside}


def _as_table(report: Mapping[str, Any]) -> Table:
    table = Table(title=f"images: CPU microseconds a sample; ratios of rounds, to {report['best']}")
    columns = (
        "all", "trainer", "balancer", "workers", "ratio", "range", "over alone", "samples/s",
    )  # fmt: skip
    for column in ("pipeline", *columns):
        justify: Literal["left", "right"] = "left" if column == "pipeline" else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for name, found in report["pipelines"].items():
        ratio, alone = found["over_best"], found.get("over_alone")
        parts = ("all_us", "trainer_us", "balancer_us", "workers_us")
        table.add_row(
            name,
            *(f"{found[part]:.0f}" for part in parts),
            f"{ratio['median']:.2f}",
            f"{ratio['low']:.2f}-{ratio['high']:.2f}",
            f"{alone['median']:.2f}" if alone else "",
            f"{found['samples_per_s']:.1f}",
        )
    beside = report["threads_over_processes"]
    ratios = (f"{beside[name]['median']:.2f}" for name in ("cpu", "samples_per_s"))
    table.caption = "threads over processes: CPU {}, samples/s {}".format(*ratios)
    if why_not := report["left_out"]:
        table.caption += f"\nleft out: {'; '.join(why_not.values())}"
    return table
