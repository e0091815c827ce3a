"""Cases of `balance="auto"` that several ranks run together, by name from tests.frameworks.pool."""

import os
from typing import Any

import numpy as np
import torch.distributed as dist

import counterpoise as cp
from counterpoise.loader.auto import late

from .tiny import KEPT, Texts, collate, numbers_of
from .training_cases import Pairs, Whole, sgd, weights


def _make(**more: Any) -> Any:
    given: dict[str, Any] = {"batch_size": 4, "shuffle": True, "balance": "auto"}
    loader = cp.DataLoader(Texts(more.pop("count", 90)), collate_fn=collate, **{**given, **more})
    KEPT.append(loader)
    return loader


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def together(accumulate: int = 2, count: int = 90, virtual_ranks: int | None = None) -> Any:
    """Return what one rank takes, its ledger and its length; rank 0 asks for that first."""
    loader = _make(
        balance=cp.Balance("auto", accumulate=accumulate), count=count, num_workers=1,
        virtual_ranks=virtual_ranks,
    )  # fmt: skip
    length = len(loader) if _rank() == 0 else None
    taken = [
        (info.step, info.microbatch, info.rank, numbers_of(b)) for b, info in loader.with_info()
    ]
    return taken, loader.state_dict(), length


def resumed() -> Any:
    """Return what comes after a ledger from inside a step; nobody reads the first samples again."""
    loader = _make(balance=cp.Balance("auto", accumulate=2), num_workers=1)
    batches = iter(loader)
    first = [numbers_of(next(batches)) for _ in range(3)]
    state = loader.state_dict()
    again = _make(balance=cp.Balance("auto", accumulate=2), num_workers=1)
    module: Any = late
    asked, module.ask_worker = module.ask_worker, None
    try:
        again.load_state_dict(state)
        rest = [numbers_of(batch) for batch in again]
    finally:
        module.ask_worker = asked
    return first, rest


def raises(samples: list[Any]) -> Any:
    """Fail in Python."""
    raise TypeError(f"cannot stack {len(samples)}")


def dies(_: list[Any]) -> Any:
    """End the process."""
    os._exit(7)


def failing(kind: str) -> str:
    """Return the error of a rank whose collate_fn cannot be tried."""
    loader = cp.DataLoader(
        Texts(),
        4,
        shuffle=True,
        balance="auto",
        collate_fn=dies if kind == "dies" else raises,
        num_workers=1,
        name=kind,
    )
    KEPT.append(loader)
    try:
        next(iter(loader))
    except (ValueError, cp.LoaderError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def small_budget() -> str:
    """Return the error of a rank where a step does not fit into the byte budget."""
    loader = _make(num_workers=1, buffer_bytes=300)
    try:
        next(iter(loader))
    except (ValueError, cp.LoaderError) as error:
        return str(error)
    return "no error"


# Loops as they are written for torch: the mean of a microbatch's losses, and no weights.


def _mean(model: Any, batch: Any) -> Any:
    return model(batch) / len(numbers_of(batch))


def by_hand(accumulate: int, epochs: int) -> tuple[Pairs, list[np.ndarray]]:
    """DDP with accumulation; `samples` as torch's sampler gives them."""
    from torch.nn.parallel import DistributedDataParallel

    model, done, seen = Whole(), 0, []
    wrapped: Any = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = sgd(model)
    loader = _make(balance=cp.Balance("auto", accumulate=accumulate), count=96, num_workers=1)
    for _ in range(epochs):
        for number, batch in enumerate(loader):
            seen.append((done, numbers_of(batch)))
            (_mean(wrapped, batch) / accumulate).backward()
            if (number + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                done += 1
    return seen, weights(model)


def accelerate(accumulate: int, epochs: int) -> tuple[Pairs, list[np.ndarray]]:
    """accelerate's loop, which knows its accumulation by itself."""
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=accumulate)
    model = Whole()
    loader = _make(balance="auto", count=96, num_workers=1)
    wrapped, optimizer, loader = accelerator.prepare(model, sgd(model), loader)
    done, seen = 0, []
    for _ in range(epochs):
        for batch in loader:
            seen.append((done, numbers_of(batch)))
            with accelerator.accumulate(wrapped):
                accelerator.backward(_mean(wrapped, batch))
                optimizer.step()
                optimizer.zero_grad()
            done += accelerator.sync_gradients
    return seen, weights(model)


def lightning(accumulate: int, epochs: int) -> tuple[Pairs, list[np.ndarray]]:
    """Lightning's Trainer, automatic optimization."""
    from lightning import LightningModule

    from .lightning_cases import trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.whole = Whole()
            self.seen: Pairs = []

        def training_step(self, batch: Any, _: int) -> Any:
            self.seen.append((self.trainer.global_step, numbers_of(batch)))
            return _mean(self.whole, batch)

        def configure_optimizers(self) -> Any:
            return sgd(self.whole)

    module = Module()
    loader = _make(balance=cp.Balance("auto", accumulate=accumulate), count=96, num_workers=1)
    trainer(max_epochs=epochs, accumulate_grad_batches=accumulate).fit(module, loader)
    return module.seen, weights(module.whole)


def trained(framework: str, accumulate: int, epochs: int) -> Any:
    """Return what a loop has trained on by optimizer step, and the weights."""
    return globals()[framework](accumulate, epochs)


def reference(ranks: int, accumulate: int, epochs: int) -> tuple[Pairs, list[np.ndarray]]:
    """One process over the steps of torch's sampler, a mean over the samples of the step."""
    from torch.utils.data import DistributedSampler

    data, model, seen = Texts(96), Whole(), []
    optimizer, size, done = sgd(model), 4 * ranks * accumulate, 0
    order: Any = DistributedSampler(data, 1, 0, seed=0)
    for epoch in range(epochs):
        order.set_epoch(epoch)
        numbers = list(order)
        for start in range(0, len(numbers), size):
            some = numbers[start : start + size]
            seen.append((done, some))
            (model(collate([data[k] for k in some])) / size).backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
    return seen, weights(model)


def hf_trainer(folder: str, accumulate: int) -> Any:
    """(samples by step, weights) of transformers' Trainer, whose losses are token means."""
    from .trainer_cases import trainer, weights

    made = trainer(folder, accumulate)
    loader = _make(count=76, num_workers=int(dist.is_initialized()))
    cp.adapters.attach_trainer(made, loader).train()
    return made.seen, weights(made)


def hf_reference(ranks: int, accumulate: int) -> Any:
    """A loop of one process over the same samples: the mean over the step's label tokens."""
    import torch
    from torch.utils.data import DistributedSampler

    from .trainer_cases import model

    data, made, seen = Texts(76), model(), []
    optimizer, size = torch.optim.SGD(made.parameters(), lr=0.1), 4 * ranks * accumulate
    made.train()
    numbers: list[int] = list(DistributedSampler(data, 1, 0, seed=0))
    for step, start in enumerate(range(0, len(numbers), size)):
        some = numbers[start : start + size]
        seen.append((step, some))
        batch = collate([data[k] for k in some])
        tokens = int(batch["labels"][:, 1:].ne(-100).sum())
        made(**batch, num_items_in_batch=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return seen, [each.detach().numpy() for each in made.parameters()]
