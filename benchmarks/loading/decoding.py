"""`make bench NAME=decoding`: CPU time of images, by pipeline: ours, torch's and others'.

`alone` is decoding and resizing and nothing else, of bytes in memory, in as many processes as
others have workers: cores that share a cache, or are two threads of one, take longer for each.
`threads` is `balanced` with one worker, and in it as many threads that decode as others have
workers; it is compared with `balanced` in each round.
"""

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import RawValue
from typing import Any

import click
from rich.table import Table

from counterpoise.tools.console.reporting import emit, make_table, spread
from counterpoise.tools.demo.data import ensure_demo_data

from .pipelines import (
    ImagePass,
    ImagePipeline,
    ImageWork,
    balanced,
    copy_samples,
    measure,
    plain,
    samples_of,
    torchs,
)


def threads(work: ImageWork, resize: str) -> Any:
    """Return a balanced loader of one worker, with a thread for each worker of the others."""
    return balanced(work, resize, num_workers=1, decode_threads=work.workers)


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


class _Samples:
    """Samples in memory, of which the pictures are decoded and resized, and nothing else.

    They are returned while `are_wanted`, as for a hash: whoever sends them to another process does
    more than that.
    """

    def __init__(self, work: ImageWork, resize: str) -> None:
        from counterpoise.workers.images.resize import resizer

        self._resizer, self._size = resizer(resize), work.tile_size
        self._samples = [each for path in work.shards for each in samples_of(path)]
        self.are_wanted = RawValue("b", True)  # also of the processes that are forked

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> list[Any]:
        import numpy as np

        from counterpoise.workers.images.decode import open_image
        from counterpoise.workers.vision_language.tiles import cut, grid, tile_count
        from counterpoise.workers.vision_language.transform import image_members

        size, sample, found = self._size, self._samples[index], list[Any]()
        for name in image_members(sample):
            opened = open_image(sample[name])
            shape = grid(*opened.size, size)
            found.append(np.empty((tile_count(shape), 3, size, size), np.uint8))
            image = opened.decode((shape[0] * size, shape[1] * size))
            cut(image, shape, found[-1], self._resizer)
        return found if self.are_wanted.value else [None] * len(found)


class _Alone:
    """Pictures made by as many processes as others have workers, beside each other as theirs."""

    def __init__(self, work: ImageWork, resize: str) -> None:
        from torch.utils.data import DataLoader

        self._samples = _Samples(work, resize)
        options: dict[str, Any] = {**work.options, "collate_fn": _pictures_of}
        self._loader: Any = DataLoader(self._samples, **options)  # type: ignore[arg-type]

    @property
    def _iterator(self) -> Any:
        return self._loader._iterator

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self._loader
        self._samples.are_wanted.value = False


def _pictures_of(samples: list[list[Any]]) -> dict[str, Any]:
    """Return what is counted and hashed of a batch."""
    import numpy as np
    import torch

    found = [each for pictures in samples for each in pictures if each is not None]
    return {
        "cu_seq_lens": torch.arange(len(samples) + 1),
        "tiles_per_image": torch.tensor([len(each) for each in found], dtype=torch.int64),
        "pixel_values": torch.from_numpy(np.concatenate(found)) if found else torch.empty(0),
    }


PEERS = {
    "DataLoader": ImagePipeline(torchs, "pillow"),
    "webdataset": ImagePipeline(webdatasets, "pillow"),
}
ALONE = {"alone": ImagePipeline(_Alone, "torch"), "alone, pillow": ImagePipeline(_Alone, "pillow")}
PIPELINES = {
    "balanced": ImagePipeline(balanced, "torch"),
    "balanced, pillow": ImagePipeline(balanced, "pillow"),
    "plain": ImagePipeline(plain, "torch"),
    "threads": ImagePipeline(threads, "torch"),
    **PEERS,
    **ALONE,
}


@click.command("decoding")
@click.option("--data", metavar="PATTERN", help="Tar shards; default: the demo's own data.")
@click.option("--samples", type=click.IntRange(8), default=128, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--batch-size", type=click.IntRange(1), default=8, show_default=True)
@click.option("--tile-size", type=click.IntRange(16), default=448, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(data: str | None, samples: int, as_json: bool, **sizes: int) -> None:
    """Compare CPU time per sample of image pipelines, ours and others', and what is left of each.

    Example: make bench NAME=decoding ARGS="--data 'DIR/*.tar' --rounds 5 --json"
    """
    with tempfile.TemporaryDirectory(prefix="counterpoise-bench-") as folder:
        copy_samples(data or ensure_demo_data(), samples, max(2, sizes["workers"]), folder)
        work = ImageWork(folder, sizes["batch_size"], sizes["workers"], sizes["tile_size"])
        passes = measure(work, PIPELINES, sizes["rounds"])
    report = {"samples": samples, **sizes, "load_average": os.getloadavg()[0], **figures(passes)}
    emit(report, as_json, as_table(report))


def figures(passes: Mapping[str, list[ImagePass]]) -> dict[str, Any]:
    """Return each pipeline's CPU time a sample, in each round over that of the best of PEERS.

    `over_alone` compares all processes but the trainer with decoding alone, where there are any.
    """
    best = min(PEERS, key=lambda name: statistics.median(each.all_us for each in passes[name]))
    alone = {each.resize: name for name, each in ALONE.items()}
    found: dict[str, dict[str, Any]] = {}
    for name, mine in passes.items():
        found[name] = {
            part: statistics.median(getattr(each, part) for each in mine)
            for part in ("all_us", "trainer_us", "workers_us", "rate")
        }
        pairs = zip(mine, passes[best], strict=True)
        found[name]["over_best"] = spread([a.all_us / b.all_us for a, b in pairs])
        if name not in ALONE:
            bare = zip(mine, passes[alone[PIPELINES[name].resize]], strict=True)
            found[name]["over_alone"] = spread([a.workers_us / b.workers_us for a, b in bare])
    beside = list(zip(passes["threads"], passes["balanced"], strict=True))
    return {
        "best": best,
        "pipelines": found,
        "threads_over_processes": {
            "cpu": spread([a.all_us / b.all_us for a, b in beside]),
            "samples_per_s": spread([a.rate / b.rate for a, b in beside]),
        },
    }


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
            f"{found['rate']:.1f}",
        )
    beside = report["threads_over_processes"]
    ratios = (f"{beside[name]['median']:.2f}" for name in ("cpu", "samples_per_s"))
    table.caption = "threads over processes: CPU {}, samples/s {}".format(*ratios)
    return table
