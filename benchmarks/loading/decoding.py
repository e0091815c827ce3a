"""`make bench NAME=decoding`: CPU time of images, by pipeline: ours, torch's and others'.

`alone` is decoding and resizing and nothing else, of bytes in memory, in as many processes as
others have workers: cores that share a cache, or are two threads of one, take longer for each.
`threads` is `balanced` with one worker, and in it as many threads that decode as others have
workers; it is compared with `balanced` in each round. Energon takes part where it is installed.
"""

import os
from collections.abc import Iterator, Mapping
from multiprocessing import RawValue
from typing import Any

import click

from counterpoise.tools.console.reporting import emit, spread

from . import images
from .energon import energon_loader, why_no_energon
from .pipelines import PREFETCH, ImagePass, ImagePipeline, ImageWork, balanced, samples_of


def threads(work: ImageWork, resize: str) -> Any:
    """Return a balanced loader of one worker, with a thread for each worker of the others."""
    return balanced(work, resize, num_workers=1, decode_threads=work.workers)


def energons(work: ImageWork, resize: str) -> Any:
    """Return Energon's loader of the shards."""
    from counterpoise.loader import collate_packed

    decode = images.decoding(work, resize)
    sizes = (work.batch_size, work.workers, PREFETCH)
    return energon_loader(work.folder, decode, collate_packed, *sizes)


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


OURS = {**images.OURS, "threads": ImagePipeline(threads, "torch")}
PEERS = {**images.TORCHS, "energon": ImagePipeline(energons, "pillow")}
ALONE = {"alone": ImagePipeline(_Alone, "torch"), "alone, pillow": ImagePipeline(_Alone, "pillow")}
PIPELINES = {**OURS, **PEERS, **ALONE}


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
    left_out = why_not_all()
    pipelines = {name: each for name, each in PIPELINES.items() if name not in left_out}
    passes = images.measured(data, samples, pipelines, **sizes)
    report = {"samples": samples, **sizes, "load_average": os.getloadavg()[0], **figures(passes)}
    table = images.as_table(report)
    beside = report["threads_over_processes"]
    ratios = (f"{beside[name]['median']:.2f}" for name in ("cpu", "samples_per_s"))
    table.caption = "threads over processes: CPU {}, samples/s {}".format(*ratios)
    table.caption += f"\nleft out: {'; '.join(left_out.values())}" if left_out else ""
    emit({**report, "left_out": left_out}, as_json, table)


def why_not_all() -> dict[str, str]:
    """Return the pipelines that cannot take part here, and why."""
    why_not = why_no_energon()
    return {"energon": why_not} if why_not else {}


def figures(passes: Mapping[str, list[ImagePass]]) -> dict[str, Any]:
    """Return the figures of all pipelines, those with workers over decoding alone, and threads.

    `over_alone` compares all processes but the trainer.
    """
    found = images.figures(passes, PEERS)
    alone = {each.resize: name for name, each in ALONE.items()}
    for name, mine in passes.items():
        if name not in ALONE:
            bare = passes[alone[PIPELINES[name].resize]]
            found["pipelines"][name]["over_alone"] = spread(
                [a.workers_us / b.workers_us for a, b in zip(mine, bare, strict=True)]
            )
    pairs = list(zip(passes["threads"], passes["balanced"], strict=True))
    found["threads_over_processes"] = {
        "cpu": spread([a.all_us / b.all_us for a, b in pairs]),
        "samples_per_s": spread([a.rate / b.rate for a, b in pairs]),
    }
    return found
