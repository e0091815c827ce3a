"""A loop with Accelerator.accumulate, save_state and load_state."""

from accelerate import Accelerator

import counterpoise as cp

from ..tiny import numbers_of
from .runs import Found, Run, epochs, weights


class Position:
    """What a loop remembers itself: its epoch."""

    epoch = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


def train(run: Run) -> Found:
    accelerator = Accelerator(gradient_accumulation_steps=run.accumulate)
    model = run.model()
    wrapped, optimizer = accelerator.prepare(model, run.optimizer(model))
    loader = run.sharded_loader(0, 1)  # accelerate shards
    if run.kind == "torch":
        loader = accelerator.prepare(loader)
    else:
        given = loader.with_info() if run.is_balanced else loader
        loader = cp.adapters.prepare_accelerate(accelerator, given)
    position = Position()
    accelerator.register_for_checkpointing(position)
    if run.resume:
        accelerator.load_state(run.folder)
    seen, done = [], run.first
    begin = loader.set_epoch if not run.is_balanced else lambda _: None
    for epoch, batch, info in epochs(loader, begin, position.epoch):
        position.epoch = epoch + bool(loader.end_of_dataloader)  # the one to begin
        seen.append((done, numbers_of(batch)))
        with accelerator.accumulate(wrapped):
            loss = run.share(wrapped(batch), batch, info, divided_by=run.accumulate)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        done += 1
        if run.saves_after(done) and run.kind != "torch":
            accelerator.save_state(run.folder)
        if done == run.steps:
            break
    return seen, weights(model)
