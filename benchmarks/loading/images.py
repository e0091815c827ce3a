"""CPU time from JPEG shards to batches, of ours, torch's and webdataset's pipelines.

Of each pass the CPU time of a pipeline's whole process tree counts: trainer, workers and whatever
else.
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table

from counterpoise.tools.console.reporting import make_table, spread
from counterpoise.tools.demo.data import ensure_demo_data

from .pipelines import (
    ImagePass,
    ImagePipeline,
    ImageWork,
    balanced,
    copy_samples,
    measure,
    plain,
    torchs,
)


def webdatasets(work: ImageWork, resize: str) -> Any:
    """Return torch's loader of webdataset's samples, decoded as ours are."""
    import webdataset
    from torch.utils.data import DataLoader

    dataset = webdataset.WebDataset(work.shards, shardshuffle=False)
    return DataLoader(dataset.map(decoding(work, resize)), **work.options)


def decoding(work: ImageWork, resize: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return what makes a sample of the bytes of its members, named as webdataset names them."""
    from counterpoise.workers import VisionLanguage
    from counterpoise.workers.tar.members import decode_member

    transform = VisionLanguage(tile_size=work.tile_size, resize=resize)

    def decode(raw: Mapping[str, Any]) -> Any:
        members = {n: decode_member(n, data) for n, data in raw.items() if not n.startswith("__")}
        return transform({"__key__": raw["__key__"], **members})

    return decode


OURS = {
    "balanced": ImagePipeline(balanced, "torch"),
    "balanced, pillow": ImagePipeline(balanced, "pillow"),
    "plain": ImagePipeline(plain, "torch"),
}
TORCHS = {
    "DataLoader": ImagePipeline(torchs, "pillow"),
    "webdataset": ImagePipeline(webdatasets, "pillow"),
}


def measured(
    data: str | None, samples: int, pipelines: Mapping[str, ImagePipeline], *,
    rounds: int, workers: int, batch_size: int, tile_size: int,
) -> dict[str, list[ImagePass]]:  # fmt: skip
    """Return the passes of pipelines over some samples of a pattern, of the demo's by default."""
    with tempfile.TemporaryDirectory(prefix="counterpoise-bench-") as folder:
        copy_samples(data or ensure_demo_data(), samples, max(2, workers), folder)
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
