"""Notes what litgpt's full finetuning trains on."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from litgpt.finetune import full

from tests.programs import recording

recording.note_plans()
fit, advance = full.fit, full.CycleIterator.__next__


class Evaluated:
    """A loader of an evaluation that notes its batches."""

    def __init__(self, loader: Any, state: dict[str, Any]) -> None:
        self.loader, self.dataset, self.state = loader, loader.dataset, state

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            ids = batch["input_ids"]
            recording.note_evaluation(self.state["step_count"], ids, ids != 0)
            yield batch


@functools.wraps(fit)
def _fit(*, fabric: Any, state: dict[str, Any], train: Any, **named: Any) -> Any:
    taken: list[Any] = []
    losses: list[float] = []
    optimizer, scheduler, backward = state["optimizer"], state["scheduler"], fabric.backward
    step = optimizer.step

    def advance_and_keep(self: Any) -> Any:
        taken[:] = [advance(self), self.epoch]
        return taken[0]

    def note_and_go_back(loss: torch.Tensor) -> None:
        batch, epoch = taken
        ids = batch["input_ids"]
        count = state["step_count"]
        recording.note_batch(count, epoch, ids, ids != 0, labels=batch["labels"][:, 1:])
        losses.append(float(loss.detach()))
        backward(loss)

    def note_and_step(*args: Any, **keywords: Any) -> Any:
        parameters = list(state["model"].named_parameters())
        recording.save_gradients(parameters)
        norm = torch.stack([each.grad.norm() for _, each in parameters]).norm()
        mean = fabric.all_reduce(torch.tensor(sum(losses)), reduce_op="mean")
        losses.clear()
        rate = scheduler.get_last_lr()[0]
        recording.note_step(state["step_count"], float(mean), float(norm), rate)
        return step(*args, **keywords)

    full.CycleIterator.__next__ = advance_and_keep
    optimizer.step, fabric.backward = note_and_step, note_and_go_back
    named["val_dataloader"] = Evaluated(named["val_dataloader"], state)
    return fit(fabric=fabric, state=state, train=train, **named)


full.fit = _fit
