"""A loop of one's own, with DDP where there are ranks, and torch.save."""

from typing import Any

import torch
import torch.distributed as dist

from ..tiny import numbers_of
from .runs import Found, Run, epochs, rank, ranks, weights


def train(run: Run) -> Found:
    model = run.model()
    wrapped: Any = model
    if dist.is_initialized():
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer, loader = run.optimizer(model), run.sharded_loader(rank(), ranks())
    path, done, first, seen = f"{run.folder}/by_hand.pt", run.first, 0, []
    if run.resume:
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        first = saved["epoch"]

    def begin(epoch: int) -> None:
        if not run.is_balanced:
            loader.sampler.set_epoch(epoch)

    given = loader.with_info() if run.is_balanced else loader
    for number, (epoch, batch, info) in enumerate(epochs(given, begin, first), 1):
        seen.append((done, numbers_of(batch)))
        run.share(wrapped(batch), batch, info).backward()
        if number % run.accumulate:
            continue
        assert info is None or info.last
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        if run.saves_after(done) and rank() == 0 and run.kind != "torch":
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "loader": loader.state_dict(), "epoch": epoch}, path)
        if done == run.steps:
            break
    if dist.is_initialized():
        dist.barrier()  # the file is whole when the next case reads it
    return seen, weights(model)
