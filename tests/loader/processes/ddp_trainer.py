"""What a process of test_ddp runs: train, and keep every step's gradients, keys and counts.

Alone (without torchrun) a step is one padded batch, and its loss is torch's own mean over all
label tokens: nothing of scale_loss is in the reference.

    python ddp_trainer.py SHARDS OUT
    torchrun --nproc-per-node 2 ddp_trainer.py SHARDS OUT
"""

import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from counterpoise.loader import Balance, DataLoader, scale_loss
from counterpoise.loader.step.info import Step
from counterpoise.loader.step.loss import Weighting
from counterpoise.tools.demo.model import DemoModelShape, VisionLanguageModel
from counterpoise.workers import TarDataset, VisionLanguage

SAMPLES_PER_STEP = 12


def sample_losses(logits: Tensor, batch: dict[str, Any]) -> Tensor:
    """Loss of every token of a padded batch, (B, n - 1); 0 where there is no label."""
    losses: Tensor = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="none"
    )
    return losses.view(len(logits), -1)


def loss_sum(logits: Tensor, batch: dict[str, Any], per: Weighting) -> Tensor:
    """Local sum of token losses, or of each sample's mean."""
    losses = sample_losses(logits, batch)
    if per == "token":
        return losses.sum()
    labels = (batch["labels"][:, 1:] != -100).sum(1).clamp(min=1)
    return (losses.sum(1) / labels).sum()


def accumulate(model: nn.Module, step: Step, per: Weighting) -> None:
    """Add up a rank's gradients; DDP averages them in the last microbatch."""
    for batch, info in zip(step.microbatches, step.infos, strict=True):
        syncing = info.last or not isinstance(model, DistributedDataParallel)
        with nullcontext() if syncing else model.no_sync():  # type: ignore[operator]
            scale_loss(loss_sum(model(batch), batch, per), info, per).backward()


def reference(model: nn.Module, step: Step, per: Weighting) -> None:
    """The gradient of the plain mean over one big batch."""
    (batch,) = step.microbatches
    logits = model(batch)
    if per == "token":
        flat = logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
        functional.cross_entropy(*flat).backward()
    else:
        (loss_sum(logits, batch, per) / len(logits)).backward()


def make_loader(shards: str, ranks: int) -> DataLoader:
    """The same global batches for any number of ranks, in unequal microbatches for several."""
    transform = VisionLanguage(tile_size=16, max_tiles=4, tokens_per_tile=1, max_tokens=400)
    budgets = {"tiles": 12, "tokens": 500}
    balance = (
        Balance(grouping="isf", budgets=budgets, accumulate="auto")
        if ranks > 1
        else Balance(grouping="fixed")
    )
    return DataLoader(
        TarDataset(shards, transform=transform),
        1 if ranks > 1 else SAMPLES_PER_STEP,
        shuffle=True,
        num_workers=1,
        balance=replace(balance, samples_per_step=SAMPLES_PER_STEP, seed=5, layout="padded"),
    )


def main(shards: str, out: str) -> None:
    """Train one epoch with a loss per token, and a new model with one per sample."""
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks > 1:
        distributed.init_process_group("gloo")
    steps = list(make_loader(shards, ranks).steps())
    for per in ("token", "sample"):
        torch.save(train(steps, ranks, per), Path(out) / f"{per}-{ranks}-{rank}.pt")
    if ranks > 1:
        distributed.destroy_process_group()


def train(steps: list[Step], ranks: int, per: Weighting) -> list[dict[str, Any]]:
    """Train on an epoch's steps with SGD and return what each step had."""
    torch.manual_seed(0)
    shape = DemoModelShape(262, image_token=259, tile=16, tokens_per_tile=1, width=16, heads=2)
    model: nn.Module = VisionLanguageModel(shape)
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for step in steps:
        (accumulate if ranks > 1 else reference)(model, step, per)
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        counts = [(info.samples, info.label_tokens) for info in step.infos]
        keys = sorted(key for info in step.infos for key in info.keys)
        kept.append({"gradients": gradients, "keys": keys, "counts": counts})
        optimizer.step()
        optimizer.zero_grad()
    return kept


if __name__ == "__main__":
    main(*sys.argv[1:])
