"""`counterpoise bench images`: CPU time from JPEG shards to batches, by pipeline.

Of each pass the CPU time of a pipeline's whole process tree counts: trainer, workers and whatever
else. `make bench NAME=decoding` compares more: decode threads, energon, and decoding by itself.
"""

import os
import statistics
from collections.abc import Mapping
from typing import Any

import click
from rich.table import Table

from ..console.reporting import emit, make_table, spread
from ..demo.data import ensure_demo_data
from .pipelines import (
    ImagePass,
    ImagePipeline,
    ImageWork,
    balanced,
    copied,
    measure,
    plain,
    torchs,
    webdatasets,
)

OURS = {
    "balanced": ImagePipeline(balanced, "torch"),
    "balanced, pillow": ImagePipeline(balanced, "pillow"),
    "plain": ImagePipeline(plain, "torch"),
}
TORCHS = {
    "DataLoader": ImagePipeline(torchs, "pillow"),
    "webdataset": ImagePipeline(webdatasets, "pillow"),
}


@click.command("images")
@click.option("--data", metavar="PATTERN", help="Tar shards; default: the demo's own data.")
@click.option("--samples", type=click.IntRange(8), default=128, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=8, show_default=True)
@click.option("--tile-size", type=click.IntRange(16), default=448, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(data: str | None, samples: int, as_json: bool, **sizes: int) -> None:
    r"""Compare CPU time per sample with torch's DataLoader and webdataset, on images.

    \b
    Example:
      counterpoise bench images --data '/data/*.tar' --rounds 10 --json
    """
    passes = measured(data, samples, {**OURS, **TORCHS}, **sizes)
    report = {"samples": samples, **sizes, "load_average": os.getloadavg()[0], **figures(passes)}
    emit(report, as_json, as_table(report))


def measured(
    data: str | None, samples: int, pipelines: Mapping[str, ImagePipeline], *,
    rounds: int, workers: int, batch_size: int, tile_size: int,
) -> dict[str, list[ImagePass]]:  # fmt: skip
    """Return the passes of pipelines over some samples of a pattern, of the demo's by default."""
    with copied(data or ensure_demo_data(), samples, workers) as folder:
        return measure(ImageWork(folder, batch_size, workers, tile_size), pipelines, rounds)


def figures(
    passes: Mapping[str, list[ImagePass]], peers: Mapping[str, ImagePipeline] = TORCHS
) -> dict[str, Any]:
    """Return each pipeline's CPU time a sample, in each round over that of the best of `peers`."""
    best = min(
        passes.keys() & peers,
        key=lambda name: statistics.median(each.all_us for each in passes[name]),
    )
    found = {
        name: {
            **{
                part: statistics.median(getattr(each, part) for each in mine)
                for part in ("all_us", "trainer_us", "workers_us")
            },
            "samples_per_s": statistics.median(each.rate for each in mine),
            "over_best": spread(
                [a.all_us / b.all_us for a, b in zip(mine, passes[best], strict=True)]
            ),
        }
        for name, mine in passes.items()
    }
    return {"best": best, "pipelines": found}


def as_table(report: Mapping[str, Any]) -> Table:
    """Return the pipelines' figures as a table."""
    title = f"images: CPU microseconds a sample; ratios of rounds, to {report['best']}"
    columns = ("pipeline", "all", "trainer", "workers", "ratio", "range", "samples/s")
    table = make_table(title, *columns)
    for name, found in report["pipelines"].items():
        ratio = found["over_best"]
        table.add_row(
            name,
            *(f"{found[part]:.0f}" for part in ("all_us", "trainer_us", "workers_us")),
            f"{ratio['median']:.2f}",
            f"{ratio['low']:.2f}-{ratio['high']:.2f}",
            f"{found['samples_per_s']:.1f}",
        )
    return table
