"""Loops written for torch, with balance="auto": their samples by step, and each step's gradients.

per="sample" is the loop as it was: a microbatch's mean, no weights. per="token" has the line that
weighs: `scale_loss`, or what Trainer does by itself.
"""

from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist

import counterpoise as cp

from .tiny import KEPT, Texts, TinyModel, collate, numbers_of

Per = Literal["sample", "token"]
Pairs = list[tuple[int, list[int]]]
Gradients = list[list[np.ndarray]]
EACH = 4


class Labelled(Texts):
    """The same texts, as tokenizers leave them for training."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        return {**sample, "labels": sample["input_ids"]}


class Pictured(Labelled):
    """The same, each with an image of 1 to 4 tiles."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        drawn = torch.Generator().manual_seed(index)
        tiles = 1 + index * 11 % 7 % 4
        pixels = torch.rand(tiles, 3, 2, 2, generator=drawn, dtype=torch.float64)
        return {**super().__getitem__(index), "pixel_values": pixels}


def collate_pictured(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pad the texts, and join the tiles: what most vision-language collate functions do."""
    images = [sample["pixel_values"] for sample in samples]
    tiles = torch.tensor([len(each) for each in images])
    return {**collate(samples), "pixel_values": torch.cat(images), "tiles": tiles}


class Model(torch.nn.Module):
    """Predicts the next token from this one, and from the mean of its sample's tiles."""

    def __init__(self, sees: bool = False) -> None:
        super().__init__()
        self.text = TinyModel()
        if sees:
            self.eye = torch.nn.Linear(12, 4, dtype=torch.float64)

    def forward(self, batch: dict[str, torch.Tensor], per: Per) -> torch.Tensor:
        """Return the sum of losses of label tokens, or of the samples' means."""
        found = self.text.embedding(batch["input_ids"])
        if "tiles" in batch:
            tiles = batch["tiles"]
            owner = torch.arange(len(tiles)).repeat_interleave(tiles)
            sums = found.new_zeros(len(tiles), 4)
            sums = sums.index_add(0, owner, self.eye(batch["pixel_values"].flatten(1)))
            found = found + (sums / tiles[:, None])[:, None]
        logits, labels = self.text.output(found)[:, :-1], batch["labels"][:, 1:]
        each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        return each.sum() if per == "token" else (each.sum(1) / labels.ne(-100).sum(1)).sum()


class MeanModel(Model):
    """The same for Trainer: returns its own mean over samples, and takes no num_items_in_batch."""

    def forward(self, input_ids: Any, labels: Any) -> dict[str, torch.Tensor]:  # type: ignore[override]
        batch = {"input_ids": input_ids, "labels": labels}
        return {"loss": super().forward(batch, "sample") / len(input_ids)}


def _data(framework: str, count: int) -> tuple[Texts, Any]:
    """Images beside texts under accelerate, texts elsewhere; and how they are collated."""
    pictured = framework == "accelerate"
    return (Pictured(count), collate_pictured) if pictured else (Labelled(count), collate)


def _model(framework: str, per: Per) -> Any:
    if framework != "trainer":
        return Model(sees=framework == "accelerate")
    if per == "sample":
        return MeanModel()
    from .trainer_cases import model

    return model()


def _loader(framework: str, count: int, balance: Any) -> Any:
    data, own_collate = _data(framework, count)
    loader = cp.DataLoader(
        data, batch_size=EACH, shuffle=True, balance=balance, collate_fn=own_collate,
        num_workers=int(dist.is_initialized()),
    )  # fmt: skip
    KEPT.append(loader)
    return loader


def _sgd(model: torch.nn.Module, rate: float = 0.5) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate)


def _note(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> Gradients:
    """Return the list to which the gradients of each optimizer step are added."""
    found: Gradients = []

    def note(*_: Any) -> None:
        gradients: list[Any] = [each.grad for each in model.parameters()]
        found.append([each.numpy().copy() for each in gradients])

    optimizer.register_step_post_hook(note)
    return found


def by_hand(per: Per, accumulate: int, count: int, epochs: int) -> tuple[Pairs, Gradients]:
    """DDP with accumulation."""
    model, done, seen = _model("by_hand", per), 0, []
    wrapped: Any = model
    if dist.is_initialized():
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = _sgd(model)
    found = _note(optimizer, model)
    counts: Any = "free" if per == "token" else None
    loader = _loader("by_hand", count, cp.Balance("auto", accumulate=accumulate, counts=counts))
    for _ in range(epochs):
        for number, (batch, info) in enumerate(loader.with_info()):
            seen.append((done, numbers_of(batch)))
            if per == "token":
                cp.scale_loss(wrapped(batch, per), info).backward()
            else:
                (wrapped(batch, per) / len(batch["labels"]) / accumulate).backward()
            if (number + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                done += 1
    return seen, found


def accelerate(per: Per, accumulate: int, count: int, epochs: int) -> tuple[Pairs, Gradients]:
    """accelerate's loop, over images and texts; it knows its accumulation by itself."""
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=accumulate)
    model = _model("accelerate", per)
    optimizer = _sgd(model)
    found = _note(optimizer, model)
    counts: Any = "free" if per == "token" else None
    loader = _loader("accelerate", count, cp.Balance("auto", counts=counts))
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    done, seen = 0, []
    for _ in range(epochs):
        for batch, info in loader.with_info():
            seen.append((done, numbers_of(batch)))
            with accelerator.accumulate(wrapped):
                loss = wrapped(batch, per)
                if per == "token":
                    loss = cp.scale_loss(loss, info, divided_by=accumulate)
                else:
                    loss = loss / len(batch["labels"])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            done += accelerator.sync_gradients
    return seen, found


def lightning(per: Per, accumulate: int, count: int, epochs: int) -> tuple[Pairs, Gradients]:
    """Lightning's Trainer, automatic optimization."""
    from lightning import LightningModule

    from .lightning_cases import trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = _model("lightning", per)
            self.seen: Pairs = []
            self.found: Gradients = []

        def training_step(self, batch: Any, _: int) -> Any:
            info = None
            if per == "token":
                batch, info = batch
            self.seen.append((self.trainer.global_step, numbers_of(batch)))
            loss = self.model(batch, per)
            if info is not None:
                return cp.scale_loss(loss, info, divided_by=accumulate)
            return loss / len(batch["labels"])

        def configure_optimizers(self) -> Any:
            optimizer = _sgd(self.model)
            self.found = _note(optimizer, self.model)
            return optimizer

    module = Module()
    loader = _loader("lightning", count, cp.Balance("auto", accumulate=accumulate))
    given = loader.with_info() if per == "token" else loader
    trainer(max_epochs=epochs, accumulate_grad_batches=accumulate).fit(module, given)
    return module.seen, module.found


def hf_trainer(
    per: Per, accumulate: int, count: int, epochs: int, folder: str
) -> tuple[Pairs, Gradients]:
    """transformers' Trainer: a model of its library, or one with a mean of its own."""
    from .trainer_cases import Noting, trainer

    args = trainer(folder, accumulate, num_train_epochs=epochs).args
    made = Noting(model=_model("trainer", per), args=args, data_collator=collate)
    cp.adapters.attach_trainer(made, _loader("trainer", count, "auto"))
    found = _note(made.create_optimizer(), made.model)
    made.train()
    return made.seen, found


LOOPS: dict[str, Any] = {"by_hand": by_hand, "accelerate": accelerate, "lightning": lightning}


def trained(framework: str, folder: str, **named: Any) -> tuple[Pairs, Gradients]:
    """Return what a loop has trained on by optimizer step, and each step's gradients."""
    if framework == "trainer":
        return hf_trainer(folder=folder, **named)
    found: tuple[Pairs, Gradients] = LOOPS[framework](**named)
    return found


def reference(
    framework: str, per: Per, ranks: int, accumulate: int, count: int, epochs: int
) -> tuple[Pairs, Gradients]:
    """One process over the same samples by step, which torch's sampler gives: one mean over all."""
    from torch.utils.data import DistributedSampler

    if framework == "trainer":
        from .trainer_cases import counted
    (data, own_collate), model = _data(framework, count), _model(framework, per)
    optimizer = _sgd(model, 0.1 if framework == "trainer" else 0.5)
    size, seen = EACH * ranks * accumulate, list[Any]()
    found = _note(optimizer, model)
    order: Any = DistributedSampler(data, 1, 0, seed=0)
    for epoch in range(epochs):
        order.set_epoch(epoch)
        numbers = list(order)
        for start in range(0, len(numbers), size):
            some = numbers[start : start + size]
            batch = own_collate([data[k] for k in some])
            tokens = int(batch["labels"][:, 1:].ne(-100).sum())
            if framework == "trainer":
                given = {} if per == "sample" else {"num_items_in_batch": counted(batch["labels"])}
                loss = model(**batch, **given)["loss"]
            else:
                loss = model(batch, per) / (tokens if per == "token" else len(some))
            loss.backward()
            seen.append((len(seen), some))
            optimizer.step()
            optimizer.zero_grad()
    return seen, found
