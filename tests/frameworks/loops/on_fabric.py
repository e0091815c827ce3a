"""A loop with Fabric's setup, backward, save and load."""

from typing import Any

from lightning import Fabric

from ..tiny import numbers_of
from .runs import Found, Run, epochs, ranks, weights


def train(run: Run) -> Found:
    strategy = "ddp" if ranks() > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=ranks(), strategy=strategy)
    fabric.launch()
    model = run.model()
    wrapped, optimizer = fabric.setup(model, run.optimizer(model))
    loader = run.loader() if ranks() > 1 else run.sharded_loader(0, 1)
    given = loader.with_info() if run.is_balanced else loader
    made = fabric.setup_dataloaders(given)
    inner = made._dataloader  # a plain one was made again, with a distributed sampler
    state: dict[str, Any] = {"model": wrapped, "optimizer": optimizer, "loader": inner}
    state["epoch"] = 0
    path, seen, done = f"{run.folder}/fabric.ckpt", [], run.first
    if run.resume:
        fabric.load(path, state)
        if not run.is_balanced:
            made._num_iter_calls = state["epoch"]  # what Fabric tells samplers, and does not save
    first = state["epoch"]
    for number, (epoch, batch, info) in enumerate(epochs(made, first=first), 1):
        state["epoch"] = epoch
        seen.append((done, numbers_of(batch)))
        fabric.backward(run.share(wrapped(batch), batch, info))
        if number % run.accumulate:
            continue
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        if run.saves_after(done) and run.kind != "torch":
            fabric.save(path, state)
        if done == run.steps:
            break
    return seen, weights(model)
