"""Notes what Lightning's Trainer trains on speech."""

import functools
from typing import Any

import lightning
import torch

from tests.programs import recording
from tests.programs.lhotse import speech

recording.note_plans()
fit = lightning.Trainer.fit


class Recorder(lightning.Callback):
    """Notes batches, losses, rates and evaluations; all ranks call each method."""

    def on_train_batch_start(self, trainer: Any, _: Any, batch: Any, *__: Any) -> None:
        batch, info = batch if isinstance(batch, tuple | list) else (batch, None)
        names = speech.name_cuts(batch)
        if info is not None and not info.samples:  # a cut of another rank stands in
            names = []
        lengths = batch["supervisions"]["num_samples"].tolist()[: len(names)]
        recording.note(
            "batch", step=trainer.global_step, epoch=trainer.current_epoch, samples=names,
            lengths=lengths, slots=batch["inputs"].numel(),
        )  # fmt: skip

    def on_before_optimizer_step(self, _: Any, model: Any, optimizer: Any) -> None:
        recording.save_gradients(model.named_parameters())
        gradients = [parameter.grad.norm() for parameter in model.parameters()]
        self.norm = float(torch.stack(gradients).norm())
        self.rate = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(self, trainer: Any, _: Any, outputs: Any, *__: Any) -> None:
        loss = trainer.strategy.reduce(outputs["loss"].detach(), reduce_op="mean")
        recording.note_step(trainer.global_step - 1, float(loss), self.norm, self.rate)

    def on_validation_batch_start(self, trainer: Any, _: Any, batch: Any, *__: Any) -> None:
        recording.note("evaluation", step=trainer.global_step, samples=speech.name_cuts(batch))

    def on_validation_end(self, trainer: Any, _: Any) -> None:
        loss = float(trainer.callback_metrics["val_loss"])
        recording.note("evaluated", step=trainer.global_step, loss=loss)


@functools.wraps(fit)
def _fit(self: Any, *args: Any, **named: Any) -> None:
    self.callbacks.append(Recorder())
    fit(self, *args, **named)


lightning.Trainer.fit = _fit
