"""The calls that torchtitan's trainer makes of a data loader, and torch's distributed checkpoint.

A step fetches all its microbatches, counts valid tokens over them and over the ranks, and sums
gradients. torchtitan is real where it is installed, and else what `stand_in` says of it.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.functional import pad

from ..tiny import numbers_of
from ..torchtitan_stand_in import install
from .runs import Found, Run, rank, ranks, weights


def train(run: Run) -> Found:
    install()
    from counterpoise.loader.adapters.torchtitan import PlannedDataLoader

    def make(ranks: tuple[int, int], tokenizer: Any, **_: Any) -> Any:
        return run.sharded_loader(*ranks)

    config = PlannedDataLoader.Config(loader=make)
    dataloader = config.build(
        dp_world_size=ranks(), dp_rank=rank(), tokenizer=None, seq_len=32, local_batch_size=8
    )
    model = run.model("token")
    optimizer = run.optimizer(model)
    state = {"model": model.state_dict(), "dataloader": dataloader}
    if run.resume:
        load(state, checkpoint_id=run.folder)
        model.load_state_dict(state["model"])
    seen, iterator = [], iter(dataloader)
    for done in range(run.first, run.steps):
        batches = [as_ours(next(iterator)) for _ in range(run.accumulate)]
        tokens = torch.tensor(sum(int(each["labels"].ne(-100).sum()) for each in batches))
        if dist.is_initialized():
            dist.all_reduce(tokens)
        for batch in batches:
            seen.append((done, numbers_of(batch)))
            (model(batch) / tokens).backward()
        for each in model.parameters() if dist.is_initialized() else ():
            dist.all_reduce(each.grad)
        optimizer.step()
        optimizer.zero_grad()
        if run.saves_after(done + 1) and run.kind != "torch":
            save(state, checkpoint_id=run.folder)
    return seen, weights(model)


def as_ours(given: tuple[dict[str, torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a batch of torchtitan's with labels at their own tokens, as the tiny model's loss."""
    inputs, labels = given
    return {"input_ids": inputs["input"], "labels": pad(labels, (1, 0), value=-100)[:, :-1]}
