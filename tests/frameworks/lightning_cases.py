"""What the tests of Lightning and Fabric run in each process of a pool."""

import warnings
from typing import Any

import torch
import torch.distributed as dist

warnings.simplefilter("ignore")  # of Lightning: about workers, loggers and checkpoints

from lightning import Fabric, LightningModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

import counterpoise as cp  # noqa: E402
from tests.loader.plain.stateful_data import ByDataset  # noqa: E402

from .tiny import KEPT, Texts, TinyModel, balanced, collate, cost, error_of, numbers_of, plain  # noqa: E402

Q = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


def trainer(**named: Any) -> Trainer:
    """Return a quiet trainer on the CPU, for as many ranks as the pool has."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    named.setdefault("enable_checkpointing", False)
    strategy = "ddp" if ranks > 1 else "auto"
    return Trainer(accelerator="cpu", devices=ranks, strategy=strategy, **Q, **named)


class Module(LightningModule):
    """Notes the samples of each batch, and trains the tiny model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = TinyModel()
        self.seen: list[list[int]] = []
        self.validated: list[list[int]] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.seen.append(numbers_of(batch))
        return self.model(**batch)

    def validation_step(self, batch: Any, _: int) -> None:
        self.validated.append(numbers_of(batch))

    def predict_step(self, batch: Any, _: int) -> list[int]:
        return numbers_of(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def fitted(kind: str) -> list[list[int]]:
    """The samples of each batch that Lightning trains on."""
    module = Module()
    loader = balanced() if kind == "balanced" else plain(shuffle=True)
    trainer(max_epochs=1).fit(module, loader)
    return module.seen


def evaluated(framework: str, count: int) -> list[list[int]]:
    """The samples of each batch of an evaluation with a balanced loader."""
    loader = balanced(count=count, step=10, shuffle=False)
    if framework == "lightning":
        module = Module()
        trainer().validate(module, loader, verbose=False)
        return module.validated
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto")
    fabric.launch()
    return [numbers_of(batch) for batch in fabric.setup_dataloaders(loader)]


def alone() -> list[list[int]]:
    """The samples of each batch of the same loader in a loop of one's own."""
    loader = balanced()
    return [numbers_of(batch) for batch in loader]


def set_up(kind: str) -> list[list[int]]:
    """The samples of each batch that Fabric hands out."""
    ranks = dist.get_world_size()
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp")
    fabric.launch()
    loader = balanced() if kind == "balanced" else plain()
    return [numbers_of(batch) for batch in fabric.setup_dataloaders(loader)]


def predicted() -> str:
    """What a balanced loader says to Trainer.predict, which makes loaders again."""
    return error_of(lambda: trainer().predict(Module(), balanced()))


def sampler_fitted(framework: str) -> str:
    """What a BalancedBatchSampler says where a distributed sampler is put into its loader."""
    sampler = cp.BalancedBatchSampler(
        {"tokens": Texts().lengths}, cp.Balance(budgets={"tokens": 400}, samples_per_step=24)
    )
    loader = torch.utils.data.DataLoader(Texts(), batch_sampler=sampler, collate_fn=collate)
    if framework == "lightning":
        return error_of(lambda: trainer(max_epochs=1).fit(Module(), loader))
    fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    fabric.launch()
    return error_of(lambda: fabric.setup_dataloaders(loader))


def skipping_kept() -> tuple[Any, ...]:
    """The options of a plain loader that Lightning has made again."""
    fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    fabric.launch()
    made = fabric.setup_dataloaders(plain(on_error=cp.OnError("skip", max_errors=3)))._dataloader
    return type(made).__module__, made.on_error == cp.OnError("skip", max_errors=3)


def accumulation_error(ours: int | str, theirs: int, manual: bool = False) -> str:
    """What fit says where the loader's step and the optimizer's have other microbatches.

    ours: "found" for balance="auto".
    """
    module = Module()
    module.automatic_optimization = not manual
    made = trainer(max_epochs=1, accumulate_grad_batches=theirs)
    loader = plain(shuffle=True, balance="auto") if ours == "found" else balanced(ours)
    KEPT.append(loader)
    return error_of(lambda: made.fit(module, loader))


def validated_while_accumulating() -> list[list[int]]:
    """The samples of the validation in a fit: the loader of validation has steps of its own."""
    ranks = cp.Ranks(name="validation")
    module, kept = Module(), balanced(count=40, step=10, shuffle=False, ranks=ranks)
    made = trainer(max_epochs=1, accumulate_grad_batches=3, num_sanity_val_steps=0)
    made.fit(module, balanced(3), kept)
    return module.validated


class Stream(torch.utils.data.IterableDataset[dict[str, Any]]):
    """The samples of Texts, without an index."""

    def __iter__(self) -> Any:
        texts = Texts()
        return (texts[index] for index in range(len(texts)))


class CountedStream(ByDataset):
    """The same with a state and a length."""

    def __init__(self) -> None:
        super().__init__([len(Texts())])

    def __iter__(self) -> Any:
        texts = Texts()
        return (texts[int(number)] for number, _ in super().__iter__())

    def __len__(self) -> int:
        return len(Texts())


def went_on(kind: str, folder: str) -> list[list[list[int]]]:
    """The samples of batches of a fit, and of one that begins at its checkpoint after 3 batches."""
    fits = []
    for begun in (None, f"{folder}/step=3.ckpt"):
        module, keep = Module(), ModelCheckpoint(folder, "{step}", None, every_n_train_steps=3)
        keep.save_top_k = -1
        budgets = {"tokens": 100}
        if kind == "stream":
            balance = cp.Balance(budgets=budgets, label_tokens="batch")
            loader = cp.DataLoader(Stream(), collate_fn=collate, cost=cost, balance=balance)
        elif kind == "plain":
            loader = cp.DataLoader(CountedStream(), 4, collate_fn=collate)
        else:
            balance = cp.Balance(budgets=budgets, samples_per_step=8, mode="window")
            loader = balanced(balance=balance, drop_last=True)
        made = trainer(max_epochs=2, callbacks=keep, enable_checkpointing=True)
        made.fit(module, loader, ckpt_path=begun)
        fits.append(module.seen)
    return fits
