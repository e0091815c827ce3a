"""`counterpoise bench loader`: measures our DataLoader and torch's on the same cores.

Each runs in a process tree of its own, pinned to the same cores, with the same dataset, resizer,
batches and number of workers, and the same collate function, run in the workers. A pair's ratio is
ours / torch's samples per second.
"""

import os
import statistics
from typing import Any

import click
from rich.table import Table

from ..console.reporting import emit, make_table, spread
from ..demo.data import ensure_demo_data
from .pipelines import ImagePass, ImagePipeline, ImageWork, balanced, copied, measure, plain, torchs

SYSTEMS = {
    "ours": ImagePipeline(plain, "torch"),
    "torch": ImagePipeline(torchs, "torch"),
    "balanced": ImagePipeline(balanced, "torch"),
}
Passes = dict[str, list[ImagePass]]


@click.command("loader")
@click.option("--data", metavar="PATTERN", help="Tar shards; default: the demo's own data.")
@click.option("--workers", type=int, multiple=True, default=(1, 2), show_default=True)
@click.option("--pairs", type=click.IntRange(1), default=10, show_default=True)
@click.option("--samples", type=click.IntRange(8), default=128, show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=8, show_default=True)
@click.option("--tile-size", type=click.IntRange(16), default=448, show_default=True)
@click.option("--cores", help="Cores to pin to, such as 0,1; default: all that are allowed.")
@click.option("--prefetch", type=click.IntRange(1), default=4, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(
    data: str | None, workers: tuple[int, ...], pairs: int, samples: int, cores: str | None,
    as_json: bool, **sizes: int,
) -> None:  # fmt: skip
    """Compare samples per second with torch's DataLoader on the same cores.

    \b
    Example:
      counterpoise bench loader --data '/data/*.tar' --workers 1 --workers 2 --json
    """  # noqa: D301
    pattern, pinned = data or ensure_demo_data(), parse_cores(cores)
    with copied(pattern, samples, max(workers)) as folder:
        passes = {
            count: measure(ImageWork(folder, workers=count, cores=pinned, **sizes), SYSTEMS, pairs)
            for count in workers
        }
    report = {
        "settings": {"pattern": pattern, "samples": samples, "cores": pinned, **sizes},
        "workers": {str(count): _compared(found) for count, found in passes.items()},
        "ratio": spread([ratio for found in passes.values() for ratio in _ratios(found, "ours")]),
        "load_average": os.getloadavg()[0],
    }
    emit(report, as_json, _table(report))


def parse_cores(text: str | None) -> tuple[int, ...]:
    """Return the cores of a text such as "0,1", all that are allowed for None; else ValueError."""
    allowed = os.sched_getaffinity(0)
    if text is None:
        return tuple(sorted(allowed))
    try:
        cores = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"--cores got {text!r}; give numbers such as 0,1") from error
    if not set(cores) <= allowed:
        raise ValueError(f"--cores got {text}; allowed on this machine are {sorted(allowed)}")
    return cores


def _compared(passes: Passes) -> dict[str, Any]:
    def medians(part: str) -> dict[str, float]:
        return {n: statistics.median(getattr(e, part) for e in all_) for n, all_ in passes.items()}

    return {
        "ratio": spread(_ratios(passes, "ours")),
        "ratio_balanced": spread(_ratios(passes, "balanced")),
        "samples_per_s": medians("rate"),
        "trainer_cpu_us_per_sample": medians("trainer_us"),
    }


def _ratios(passes: Passes, name: str) -> list[float]:
    pairs = zip(passes[name], passes["torch"], strict=True)
    return [ours.rate / theirs.rate for ours, theirs in pairs]


def _table(report: dict[str, Any]) -> Table:
    title = "samples per second against torch's DataLoader (ratio of each pair)"
    table = make_table(title, "system", "workers", "samples/s", "ratio", "range", "trainer us")
    table.caption = "trainer us: its CPU microseconds a sample"
    for count, figures in report["workers"].items():
        for name in SYSTEMS:
            ratio = {"ours": figures["ratio"], "balanced": figures["ratio_balanced"]}.get(name)
            table.add_row(
                name,
                count,
                f"{figures['samples_per_s'][name]:.1f}",
                f"{ratio['median']:.2f}" if ratio else "1",
                f"{ratio['low']:.2f} to {ratio['high']:.2f}" if ratio else "",
                f"{figures['trainer_cpu_us_per_sample'][name]:.0f}",
            )
    return table
