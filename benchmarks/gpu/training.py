"""Steps of a vision-language model by loader: random, auto and packed, of as many samples each.

MFU counts the operations of real tokens and tiles alone: padding is no work.
"""

import time
from collections.abc import Sequence
from itertools import chain, repeat
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, Subset

import counterpoise as cp
from counterpoise.loader import collate_padded
from counterpoise.tools.demo.data import ensure_demo_data
from counterpoise.tools.demo.model import DemoModelShape, VisionLanguageModel, sum_loss

from .machine import peak_of
from .parts import Row, Task, over, rounds, spread_ms, synchronize

MICROBATCHES = 4  # of a rank and step
MOST_TOKENS = 4096
WAYS = ("random", "auto", "packed")
VOCABULARY, IMAGE_TOKEN = 262, 259
SMALL = DemoModelShape(VOCABULARY, IMAGE_TOKEN, width=16, depth=1, heads=2, vision_depth=1)
LARGE = DemoModelShape(
    VOCABULARY, IMAGE_TOKEN, 224, 14, 64, width=1024, depth=12, heads=16, vision_depth=12
)
Batch = dict[str, Any]


def loader_of(way: str, data: Any, rank: int, ranks: int, task: Task) -> Any:
    """Return the loader of a way; all give as many samples a rank and step."""
    size = 2 if task.small else 8
    given: dict[str, Any] = {
        "num_workers": 1 if task.small else 8, "persistent_workers": True,
        "pin_memory": not task.small, "drop_last": True,
    }  # fmt: skip
    batches: dict[str, Any] = {**given, "batch_size": size, "collate_fn": collate_padded}
    if way == "random":
        sampler: DistributedSampler[int] = DistributedSampler(data, ranks, rank)
        return DataLoader(data, sampler=sampler, **batches)
    if way == "auto":
        balance = cp.Balance("auto", accumulate=MICROBATCHES)
        return cp.DataLoader(data, balance=balance, shuffle=True, **batches)
    count = size * MICROBATCHES * ranks
    balance = cp.Balance(samples_per_step=count, accumulate=MICROBATCHES, layout="packed")
    return cp.DataLoader(data, balance=balance, shuffle=True, **given)


def work_of(shape: DemoModelShape, lengths: torch.Tensor, tiles: int) -> int:
    """Return the FLOPs of a step of samples, forward and backward, without padding.

    Forward, a block has twelve width^2 multiply-adds a token, and n^2 width for causal attention
    of n tokens (twice that in the encoder); the head is added. A backward takes two forwards.

    >>> lone = work_of(SMALL, torch.tensor([8]), 1)
    >>> work_of(SMALL, torch.tensor([8, 8]), 2) == 2 * lone
    True
    """
    width, tokens = shape.width, int(lengths.sum())
    text = tokens * (12 * width * width * shape.depth + width * shape.vocabulary)
    attention = shape.depth * int((lengths * lengths).sum()) * width
    tile = 12 * width * width * shape.patches + 2 * shape.patches**2 * width
    return 6 * (text + attention + tiles * shape.vision_depth * tile)


class Trainer:
    """One rank: a model, and a loader for each way."""

    def __init__(self, rank: int, task: Task, shards: str, ranks: int) -> None:
        self.task, self.shape = task, SMALL if task.small else LARGE
        torch.manual_seed(0)
        with torch.device(task.device):
            self.model = VisionLanguageModel(self.shape)
        fused = not task.small
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=fused)
        transform = cp.workers.VisionLanguage(
            tile_size=self.shape.tile, max_tiles=2 if task.small else 6,
            tokens_per_tile=self.shape.tokens_per_tile,
        )  # fmt: skip
        whole = cp.TarDataset(shards, transform)
        costs = [whole.probe(n).cost for n in range(len(whole))]
        # Documents of 26,000 bytes, padded, would not fit; on CUDA torch 2.11 attends to no batch
        # of no tiles.
        fits = [
            n for n, each in enumerate(costs) if each["tokens"] <= MOST_TOKENS and each["tiles"]
        ]
        data: Any = Subset(whole, fits)  # type: ignore[arg-type]
        loaders = {way: loader_of(way, data, rank, ranks, task) for way in WAYS}
        # epoch after epoch
        self.loops = {way: chain.from_iterable(repeat(each)) for way, each in loaders.items()}

    def step(self, way: str) -> dict[str, float]:
        """Train on one step; return its seconds, those of waiting for batches, and its work."""
        found = dict.fromkeys(("waited", "work", "samples", "tokens", "places"), 0.0)
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(MICROBATCHES):
            since = time.perf_counter()
            batch = next(self.loops[way])
            found["waited"] += time.perf_counter() - since
            packed = "cu_seq_lens" in batch
            lengths = batch["cu_seq_lens"].diff() if packed else batch["attention_mask"].sum(dim=1)
            lengths = lengths.long()
            found["samples"] += len(lengths)
            found["tokens"] += int(lengths.sum())
            found["places"] += batch["input_ids"].numel()
            found["work"] += work_of(self.shape, lengths, int(batch["tiles_per_image"].sum()))
            self._train(batch)
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        synchronize(self.task.device)
        return found | {"seconds": time.perf_counter() - begun}

    def _train(self, batch: Batch) -> None:
        device = self.task.device
        here = {
            name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }
        with torch.device(device), torch.autocast(device, torch.bfloat16, not self.task.small):
            logits = self.model({**here, "input_ids": here["input_ids"].long()})
        loss = sum_loss(logits.float(), here["labels"].long()) / here["labels"].numel()
        loss.backward()  # type: ignore[no-untyped-call]


def measure_training(task: Task) -> list[Row]:
    """Return a row for each way, from steps in turns after two that are not counted."""
    shards = task.shards or ensure_demo_data(samples=96 if task.small else 2048)
    steps: dict[str, list[list[dict[str, float]]]] = {way: [] for way in WAYS}
    with task.start(Trainer, task.devices, shards, task.devices) as ranks:
        for way in WAYS * (1 if task.small else 2):
            ranks.call("step", way)
        for _ in rounds(task.seconds):
            for way in WAYS:
                steps[way].append(ranks.call("step", way))
    peak = peak_of(task.name)
    times = {
        way: [max(rank["seconds"] for rank in step) for step in each] for way, each in steps.items()
    }
    return [_row(way, steps[way], times, peak) for way in WAYS]


def _row(
    way: str, steps: Sequence[Sequence[dict[str, float]]], times: dict[str, list[float]],
    peak: int | None,
) -> Row:  # fmt: skip
    ranks, own = len(steps[0]), times[way]

    def total(name: str) -> float:
        return sum(rank[name] for step in steps for rank in step)

    flops = total("work") / sum(own) / ranks
    per_step = median(sum(rank["samples"] for rank in step) for step in steps)
    return {
        "order": way, "samples a step": f"{per_step:.0f}", "step, ms": spread_ms(own),
        "over random": over(own, times["random"]),
        "samples/s": f"{total('samples') / sum(own):.1f}",
        "padding": f"{1 - total('tokens') / total('places'):.1%}",
        "waiting for batches": f"{total('waited') / sum(own) / ranks:.1%}",
        "TFLOP/s a device": f"{flops / 1e12:.3g}",
        "MFU": f"{flops / peak:.1%}" if peak else "peak unknown",
    }  # fmt: skip
