"""The tiny model trained under each framework, and by a loop of one's own in one process."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import counterpoise as cp

from .tiny import TinyModel, balanced, numbers_of

RATE = 0.5
Pairs = list[tuple[int, list[int]]]


def loss_of(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the sum over samples of each one's mean loss."""
    logits = model.output(model.embedding(batch["input_ids"]))[:, :-1]
    labels = batch["labels"][:, 1:]
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return (each.sum(1) / labels.ne(-100).sum(1)).sum()


class Whole(torch.nn.Module):
    """The model with its loss, so that DDP sees one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TinyModel()

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return loss_of(self.inner, batch)


def weights(model: torch.nn.Module) -> list[np.ndarray]:
    return [each.detach().numpy().copy() for each in model.parameters()]


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE)


def reference(accumulate: int, ranks: int, epochs: int) -> tuple[Pairs, list[np.ndarray]]:
    """One process that plays all ranks, and divides by the samples of the step."""
    loader, model, seen = balanced(accumulate, virtual_ranks=ranks), Whole(), []
    optimizer, done = sgd(model), 0
    for _ in range(epochs):
        for step in loader.steps():
            for batch, info in zip(step.microbatches, step.infos, strict=True):
                seen.append((done, numbers_of(batch)))
                (model(batch) / info.step_samples).backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
    return seen, weights(model)


def by_hand(accumulate: int, epochs: int) -> tuple[Pairs, list[np.ndarray]]:
    """A loop of one's own, with DDP where there are ranks."""
    model = Whole()
    wrapped: Any = model
    if dist.is_initialized():
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    loader, optimizer = balanced(accumulate), sgd(model)
    seen: Pairs = []
    done = 0
    for _ in range(epochs):
        for batch, info in loader.with_info():
            seen.append((done, numbers_of(batch)))
            cp.scale_loss(wrapped(batch), info, per="sample").backward()
            if info.last:
                optimizer.step()
                optimizer.zero_grad()
                done += 1
    return seen, weights(model)


def accelerate(accumulate: int, epochs: int) -> tuple[Pairs, list[np.ndarray]]:
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=accumulate)
    model = Whole()
    wrapped, optimizer, loader = accelerator.prepare(
        model, sgd(model), balanced(accumulate).with_info()
    )
    seen: Pairs = []
    done = 0
    for _ in range(epochs):
        for batch, info in loader:
            seen.append((done, numbers_of(batch)))
            with accelerator.accumulate(wrapped):
                loss = cp.scale_loss(wrapped(batch), info, per="sample", divided_by=accumulate)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            done += accelerator.sync_gradients
    return seen, weights(model)


def fabric(accumulate: int, epochs: int) -> tuple[Pairs, list[np.ndarray]]:
    from lightning import Fabric

    ranks = dist.get_world_size() if dist.is_initialized() else 1
    made = Fabric(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto")
    made.launch()
    model = Whole()
    wrapped, optimizer = made.setup(model, sgd(model))
    ours = balanced(accumulate)
    loader = made.setup_dataloaders(ours)
    seen: Pairs = []
    done = 0
    for _ in range(epochs):
        for batch in loader:
            info: Any = ours.step_info  # Fabric does not fetch ahead
            seen.append((done, numbers_of(batch)))
            made.backward(cp.scale_loss(wrapped(batch), info, per="sample"))
            if info.last:
                optimizer.step()
                optimizer.zero_grad()
                done += 1
    return seen, weights(model)


def lightning(accumulate: int, epochs: int) -> tuple[Pairs, list[np.ndarray]]:
    from lightning import LightningModule

    from .lightning_cases import trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.whole = Whole()
            self.seen: Pairs = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            batch, info = batch
            self.seen.append((self.trainer.global_step, numbers_of(batch)))
            return cp.scale_loss(self.whole(batch), info, per="sample", divided_by=accumulate)

        def configure_optimizers(self) -> Any:
            return sgd(self.whole)

    module = Module()
    loader = balanced(accumulate).with_info()
    trainer(max_epochs=epochs, accumulate_grad_batches=accumulate).fit(module, loader)
    return module.seen, weights(module.whole)


FRAMEWORKS: dict[str, Callable[[int, int], Any]] = {
    "by_hand": by_hand, "accelerate": accelerate, "fabric": fabric, "lightning": lightning,
}  # fmt: skip


def trained(framework: str, accumulate: int, epochs: int) -> Any:
    """Train under a framework: (step and samples of each microbatch, the weights)."""
    return FRAMEWORKS[framework](accumulate, epochs)
