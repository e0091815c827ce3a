"""examples/hf/diffusion.py, and its batches beside those of diffusers' training scripts."""

import random
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from diffusers import UNet2DModel
from PIL import Image

import counterpoise as cp
from tests.imports import ROOT

SCRIPT = ROOT / "examples" / "hf" / "diffusion.py"
Pictures: Any = runpy.run_path(str(SCRIPT))["Pictures"]
PICTURES, RANKS, BATCH, SIDES = 900, 8, 4, [32, 64]
RATIOS = {1: 0.2, 4 / 3: 0.2, 3 / 2: 0.2, 16 / 9: 0.12, 3 / 4: 0.12, 2 / 3: 0.1, 9 / 16: 0.06}


def write_pictures(folder: Path, count: int) -> Path:
    """Write pictures of camera's aspect ratios, about half of them small; return the folder."""
    draw = np.random.default_rng(0)
    shares = np.array([*RATIOS.values()])
    ratios = draw.choice([*RATIOS], count, p=shares / shares.sum())
    ratios = ratios * np.exp(draw.normal(0, 0.1, count))
    areas = draw.choice(np.square(SIDES), count) * draw.uniform(1, 1.5, count)
    for number, (ratio, area) in enumerate(zip(ratios, areas, strict=True)):
        width, height = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        Image.new("RGB", (width, height), (number % 256, number // 256, 0)).save(
            folder / f"{number:04}.png"
        )
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Pictures(str(write_pictures(tmp_path_factory.mktemp("pictures"), PICTURES)), SIDES)


def measure_pictures(pictures: Any) -> dict[str, list[int]]:
    """Return what the script says of its pictures."""
    return {
        "pixels": [height * width for height, width in pictures.sizes],
        "shape": [height << 20 | width for height, width in pictures.sizes],
    }


class BucketBatches(torch.utils.data.BatchSampler):
    """The rule of diffusers' scripts: each bucket cut into batches, and all batches shuffled."""

    def __init__(self, shapes: Sequence[int], drop_last: bool) -> None:
        self.shapes, self.batch_size, self.drop_last = shapes, BATCH, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        draw, batches = random.Random(0), []
        for shape in sorted({*self.shapes}):
            indices = [index for index, other in enumerate(self.shapes) if other == shape]
            draw.shuffle(indices)
            cut = [indices[start : start + BATCH] for start in range(0, len(indices), BATCH)]
            batches += [batch for batch in cut if len(batch) == BATCH or not self.drop_last]
        draw.shuffle(batches)
        yield from batches

    def __len__(self) -> int:
        return len([*iter(self)])


@dataclass(frozen=True)
class Epoch:
    """Pixels of each step and rank, counted from tensors; how often each picture came."""

    pixels: np.ndarray
    seen: Counter[int]
    mixed: int  # batches of several shapes, which no tensor can hold

    @property
    def waiting(self) -> float:
        """The longest rank of each step over the mean rank."""
        return float(self.pixels.max(axis=1).sum() / self.pixels.mean(axis=1).sum())

    def describe(self) -> str:
        """Return the figures of the page."""
        repeated = self.seen.total() - len(self.seen)
        return (
            f"{len(self.pixels)} steps, longest rank / mean {self.waiting:.3f}, "
            f"{PICTURES - len(self.seen)} left out, {repeated} repeated, {self.mixed} mixed batches"
        )


def count_theirs(pictures: Any, drop_last: bool) -> Epoch:
    """Load what Accelerate deals to each rank of their sampler's batches."""
    batches = BucketBatches(measure_pictures(pictures)["shape"], drop_last)
    ranks, seen, mixed = [], Counter[int](), 0
    for rank in range(RANKS):
        steps = []
        for batch in BatchSamplerShard(batches, RANKS, rank):
            images = [pictures[index] for index in batch]
            mixed += len({image.shape for image in images}) > 1
            steps.append(sum(image[0].numel() for image in images))
            seen.update(batch)
        ranks.append(steps)
    return Epoch(np.array(ranks).T, seen, mixed)


def count_ours(pictures: Any, balance: cp.Balance, batch_size: int = 1) -> Epoch:
    """Load an epoch of all ranks, which a loader plays."""
    loader = cp.DataLoader(
        pictures, shuffle=True, ranks=cp.Ranks(virtual=RANKS), balance=balance,
        cost=measure_pictures(pictures), batch_size=batch_size,
    )  # fmt: skip
    steps, seen = [], Counter[int]()
    for step in loader.steps():
        pixels = np.zeros(RANKS)
        for images, info in zip(step.microbatches, step.infos, strict=True):
            pixels[info.rank] += images[:, 0].numel()
            seen.update(int(key) for key in info.keys)
        steps.append(pixels)
    return Epoch(np.stack(steps), seen, 0)  # default_collate stacks: a mixed batch is an error


def test_ranks_are_more_equal_and_no_picture_is_left_out(pictures: Any) -> None:
    costs = measure_pictures(pictures)
    shapes = cp.Shapes(bucket_by="shape")
    budget = BATCH * max(SIDES) ** 2
    expected = RANKS * budget * PICTURES // sum(costs["pixels"])
    by_budget = cp.Balance(
        budgets={"pixels": budget}, mode="window", shapes=shapes, samples_per_step=expected
    )
    by_size = cp.Balance("fixed", mode="window", shapes=shapes)
    theirs = {drop: count_theirs(pictures, drop) for drop in (False, True)}
    ours = {"a budget": count_ours(pictures, by_budget)}
    ours["a batch size"] = count_ours(pictures, by_size, BATCH)
    for drop_last, epoch in theirs.items():
        print(f"\ndiffusers, drop_last={drop_last}: {epoch.describe()}", end="")
    for rule, epoch in ours.items():
        print(f"\nby {rule}: {epoch.describe()}", end="")
        assert epoch.waiting < min(other.waiting for other in theirs.values())
        assert len(epoch.seen) == epoch.seen.total() == PICTURES


def test_the_script_trains_as_its_head_says(tmp_path: Path) -> None:
    config = tmp_path / "unet"
    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    UNet2DModel(
        block_out_channels=(8,), layers_per_block=1, norm_num_groups=4, **blocks
    ).save_config(config)
    (tmp_path / "pictures").mkdir()
    write_pictures(tmp_path / "pictures", 60)
    words = ["--model", str(config), "--data", str(tmp_path / "pictures"), "--sides", "32", "64"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone",
         "--nproc-per-node=2", str(SCRIPT), *words, "--batch-size=4"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sum(map(int, re.findall(r"rank \d: (\d+) of", done.stdout))) == 60  # lines may join
