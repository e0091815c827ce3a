"""`make bench NAME=gpu`: a vision-language model trained on one GPU, by loader.

The same model takes the same real shards from torch's DataLoader and from ours as its drop-in, both
padded, and from a balanced loader that packs; in turns, some steps each. What a loader costs is the
time in which the GPU had nothing to do.
"""

import os
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Subset

import counterpoise as cp
from counterpoise.tools.console.reporting import emit
from counterpoise.tools.demo.model import DemoModelShape, VisionLanguageModel, sum_loss

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = 8  # of a microbatch
TILE, PATCH, TOKENS = 224, 14, 64
WARM_STEPS = 8
MOST_TOKENS = 4096
Batch = dict[str, Any]


def padded(samples: list[Batch]) -> Batch:
    """Collate as most users do: texts padded to the longest, tiles of all images together."""
    rows = [torch.from_numpy(each["input_ids"]).long() for each in samples]
    labels = [torch.from_numpy(each["labels"]).long() for each in samples]
    return {
        "input_ids": pad_sequence(rows, batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
        "pixel_values": torch.cat([torch.from_numpy(each["pixel_values"]) for each in samples]),
        "tiles_per_image": torch.cat(
            [torch.from_numpy(each["tiles_per_image"]) for each in samples]
        ),
    }


def parties(data: Any, workers: int) -> dict[str, Callable[[], Any]]:
    """Return the makers of loaders, by name."""
    given: dict[str, Any] = {
        "num_workers": workers, "persistent_workers": True, "pin_memory": True, "shuffle": True,
    }  # fmt: skip
    balance = cp.Balance(samples_per_step=4 * SAMPLES, accumulate=4, layout="packed")
    return {
        "torch": lambda: torch.utils.data.DataLoader(data, SAMPLES, collate_fn=padded, **given),
        "drop-in": lambda: cp.DataLoader(data, SAMPLES, collate_fn=padded, **given),
        "balanced": lambda: cp.DataLoader(data, balance=balance, **given),
    }


def for_ever(loader: Any) -> Iterator[Batch]:
    """Yield the batches of epoch after epoch."""
    return chain.from_iterable(repeat(loader))


class Trainer:
    """A model that is trained on what a loader gives."""

    def __init__(self, width: int, depth: int) -> None:
        shape = DemoModelShape(
            262, 259, TILE, PATCH, TOKENS, width=width, depth=depth, heads=width // 64,
            vision_depth=depth,
        )  # fmt: skip
        with torch.device("cuda"):
            self.model = VisionLanguageModel(shape)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)

    def run(self, batches: Iterator[Batch], steps: int) -> dict[str, float]:
        """Train on some microbatches; return samples a second and shares of the time."""
        waited, samples, tokens, spans = 0.0, 0, 0, []
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(steps):
            since = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - since
            samples += _samples_of(batch)
            tokens += batch["input_ids"].numel()
            spans.append(self._step(batch))
            # One step ahead of the GPU, as a loop that logs its loss now and then is.
            spans[max(0, len(spans) - 2)][1].synchronize()
        torch.cuda.synchronize()
        whole = time.perf_counter() - begun
        busy = sum(first.elapsed_time(last) for first, last in spans) / 1e3
        return {
            "samples_s": samples / whole, "tokens_s": tokens / whole,
            "gpu_idle": max(0.0, 1 - busy / whole), "waited": waited / whole,
        }  # fmt: skip

    def _step(self, batch: Batch) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        event: Any = torch.cuda.Event
        first, last = event(enable_timing=True), event(enable_timing=True)
        first.record()
        here = {
            name: value.to("cuda", non_blocking=True) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }
        with torch.device("cuda"), torch.autocast("cuda", torch.bfloat16):
            logits = self.model({**here, "input_ids": here["input_ids"].long()})
        loss = sum_loss(logits.float(), here["labels"].long())
        mean: Any = loss / here["labels"].numel()
        mean.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        last.record()
        return first, last


def _samples_of(batch: Batch) -> int:
    if "cu_seq_lens" in batch:
        return len(batch["cu_seq_lens"]) - 1
    return len(batch["input_ids"])


@click.command("gpu", epilog="Example: make bench NAME=gpu ARGS='--workers 8 --json'")
@click.option("--workers", type=click.IntRange(1), default=8, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--steps", type=click.IntRange(1), default=24, show_default=True)
@click.option("--width", type=click.IntRange(64), default=1024, show_default=True)
@click.option("--depth", type=click.IntRange(1), default=12, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
def command(workers: int, rounds: int, steps: int, width: int, depth: int, as_json: bool) -> None:
    """Train a model of WIDTH and DEPTH on this machine's GPU, by loader."""
    if not torch.cuda.is_available():
        raise click.ClickException("no GPU is there (torch.cuda.is_available() is False)")
    shards = Path(os.environ.get("COUNTERPOISE_DATA", ROOT.parent / "shared" / "data")) / "shards"
    transform = cp.VisionLanguage(tile_size=TILE, max_tiles=6, tokens_per_tile=TOKENS)
    whole = cp.TarDataset(f"{shards}/*.tar", transform)
    # Documents of 26,000 bytes, padded, would not fit; torch 2.11 attends to no batch of no tiles.
    costs = [whole.probe(n).cost for n in range(len(whole))]
    fits = [n for n, each in enumerate(costs) if each["tokens"] <= MOST_TOKENS and each["tiles"]]
    data: Any = Subset(whole, fits)  # type: ignore[arg-type]
    trainer = Trainer(width, depth)
    loops = {name: for_ever(make()) for name, make in parties(data, workers).items()}
    for each in loops.values():
        trainer.run(each, WARM_STEPS)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, each in loops.items():
            found[name].append(trainer.run(each, steps))
    rows = [{"loader": name, **_summary(each, found["torch"])} for name, each in found.items()]
    for row in rows:
        click.echo(str(row), err=True)
    device = torch.cuda.get_device_name()
    emit({"device": device, "torch": torch.__version__, "rows": rows}, as_json)
    os._exit(0)  # the loops have no end


def _summary(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> dict[str, Any]:
    """Return the medians, and samples/s over torch's with their range."""
    ratios = sorted(a["samples_s"] / b["samples_s"] for a, b in zip(ours, theirs, strict=True))
    medians = {name: round(median(each[name] for each in ours), 3) for name in ours[0]}
    return {
        **medians,
        "of_torch": [round(each, 2) for each in (ratios[0], median(ratios), ratios[-1])],
    }
