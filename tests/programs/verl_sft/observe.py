"""Notes what verl's SFTTrainer trains on."""

import functools
from typing import Any

import torch
from verl.trainer import sft_trainer

from tests.programs import recording

recording.note_plans()
fit, track = sft_trainer.SFTTrainer.fit, sft_trainer.Tracking.log


def _observe_fit(self: Any) -> None:
    engine, client = self.engine, self.training_client
    step, train, infer = engine.optimizer_step, client.train_batch, client.infer_batch
    optimizer_step = self.resume_global_step

    @functools.wraps(step)
    def step_and_save(*args: Any, **named: Any) -> Any:
        recording.save_gradients(engine.module.named_parameters())
        return step(*args, **named)

    def train_batch(data: Any) -> Any:
        nonlocal optimizer_step
        _note(data, optimizer_step, optimizer_step // self.steps_per_epoch)
        optimizer_step += 1
        return train(data=data)

    def infer_batch(data: Any) -> Any:
        rows = torch.nested.to_padded_tensor(data["input_ids"], 0)
        recording.note_evaluation(optimizer_step, rows, rows != 0)
        return infer(data)

    engine.optimizer_step = step_and_save
    client.train_batch, client.infer_batch = train_batch, infer_batch
    fit(self)


def _note(data: Any, step: int, epoch: int) -> None:
    ids, mask = data["input_ids"], data["loss_mask"]
    offsets = ids.offsets()
    positions = torch.cat([torch.arange(n) for n in offsets.diff().tolist()])
    labels = torch.where(mask.values() != 0, ids.values(), -100)
    recording.note_batch(step, epoch, ids.values(), position_ids=positions, labels=labels)


def _track(self: Any, data: dict[str, Any], step: int, **named: Any) -> None:
    if "train/loss" in data:
        numbers = [data[f"train/{name}"] for name in ("loss", "grad_norm", "lr")]
        recording.note_step(step - 1, *numbers)
    else:
        recording.note("evaluated", step=step, loss=float(data["val/loss"]))
    track(self, data=data, step=step, **named)


sft_trainer.SFTTrainer.fit, sft_trainer.Tracking.log = _observe_fit, _track
