"""What a run of the matrix is: loader, model, optimizer, and the loop of one's own beside it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader as TorchLoader, DistributedSampler

import counterpoise as cp

from ..tiny import Texts, TinyModel, balanced, collate, numbers_of

Batch = dict[str, torch.Tensor]
# (optimizer step, samples) of each microbatch of one process; its model's weights at the end
Found = tuple[list[tuple[int, list[int]]], list[np.ndarray]]


@dataclass(frozen=True)
class Run:
    """One training: the samples, and how many of its steps are run."""

    kind: str  # "balanced", "auto", "plain" of ours, or "torch": torch's DataLoader in its place
    accumulate: int = 1
    steps: int = 10
    folder: str = ""
    save: int = 0  # a checkpoint is saved after this step; 0 for none
    resume: bool = False  # begin at that checkpoint, and save none

    @property
    def is_balanced(self) -> bool:
        return self.kind in ("balanced", "auto")

    @property
    def first(self) -> int:
        """The step that comes first."""
        return self.save if self.resume else 0

    def saves_after(self, step: int) -> bool:
        return step == self.save and not self.resume

    def loader(self, **named: Any) -> Any:
        """Return the loader; a plain one has batches of 4 and is shuffled."""
        if self.kind == "auto":
            auto = cp.Balance("auto", accumulate=self.accumulate)
            return balanced(balance=auto, batch_size=4, cost=None, **named)
        if self.is_balanced:
            return balanced(self.accumulate, **named)
        make: Any = TorchLoader if self.kind == "torch" else cp.DataLoader
        if "sampler" not in named:
            named["shuffle"] = True
        return make(Texts(), batch_size=4, collate_fn=collate, **named)

    def sharded_loader(self, rank: int, ranks: int) -> Any:
        """Return the loader of a rank, a plain one with a sampler whose order is that of an epoch.

        With shuffle=True later epochs draw from torch's generator, which not all checkpoints hold.
        """
        if self.is_balanced:
            return self.loader()
        return self.loader(sampler=DistributedSampler(Texts(), ranks, rank, seed=5))

    def model(self, per: str = "sample") -> "Whole":
        return Whole(per)

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.5)

    def share(self, loss_sum: torch.Tensor, batch: Any, info: Any, divided_by: int = 1) -> Any:
        """Return what a step hands over: of a plain loader the mean of the batch, accumulated."""
        if self.is_balanced:
            return cp.scale_loss(loss_sum, info, per="sample", divided_by=divided_by)
        return loss_sum / len(batch["input_ids"]) / (self.accumulate / divided_by)


class Whole(torch.nn.Module):
    """The model with its loss, so that DDP sees one forward: a sum over samples, or over tokens."""

    def __init__(self, per: str = "sample") -> None:
        super().__init__()
        self.inner = TinyModel()
        self.per = per

    def forward(self, batch: Batch) -> torch.Tensor:
        logits = self.inner.output(self.inner.embedding(batch["input_ids"]))[:, :-1]
        labels = batch["labels"][:, 1:]
        each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        if self.per == "sample":
            each = each.sum(1) / labels.ne(-100).sum(1).clamp(min=1)
        return each.sum()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def weights(model: torch.nn.Module) -> list[np.ndarray]:
    return [each.detach().numpy().copy() for each in model.parameters()]


def pairs(loader: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each batch with its StepInfo, None where the loader has none."""
    for item in loader:
        yield item if isinstance(item, tuple) else (item, None)


def epochs(
    loader: Any, begin: Callable[[int], Any] = lambda _: None, first: int = 0
) -> Iterator[tuple[int, Any, Any]]:
    """Yield (epoch, batch, StepInfo) without end; `begin` is told each epoch."""
    epoch = first
    while True:
        begin(epoch)
        for batch, info in pairs(loader):
            yield epoch, batch, info
        epoch += 1


def label_tokens(batch: Batch, first: int) -> int:
    return int(batch["labels"][:, first:].ne(-100).sum())


def reference(per: str, ranks: int, **named: Any) -> Found:
    """One process that plays all ranks of a balanced run, and takes each step's mean."""
    run = Run(**named)
    model, seen, done = run.model(per), [], 0
    optimizer, loader = (
        run.optimizer(model),
        run.loader(ranks=cp.Ranks(virtual=ranks), num_workers=0),
    )
    while done < run.steps:
        for step in loader.steps():
            counted = step.infos[0].step_samples
            if per != "sample":
                first = int(per == "token")  # Trainer counts all labels of a model it does not know
                counted = sum(label_tokens(batch, first) for batch in step.microbatches)
            for batch in step.microbatches:
                seen.append((done, numbers_of(batch)))
                (model(batch) / counted).backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == run.steps:
                break
    return seen, weights(model)
