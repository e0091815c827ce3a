"""Notes what torchtitan's trainer trains on."""

import os
from collections.abc import Iterator
from typing import Any

import torch
from torchtitan import trainer
from torchtitan.components.metrics import MetricsProcessor

from tests.programs import recording

recording.note_plans()
STEPS_OF_EPOCH = int(os.environ["STEPS_OF_EPOCH"])
train, log, clip = (
    trainer.Trainer.train_step,
    MetricsProcessor.log,
    trainer.dist_utils.clip_grad_norm_,
)


def _train(self: Any, batches: Iterator[Any]) -> None:
    def noted() -> Iterator[Any]:
        for inputs, labels in batches:
            _note(self.step - 1, inputs["input"], inputs["positions"], labels)
            yield inputs, labels

    train(self, noted())


def _note(step: int, ids: torch.Tensor, positions: torch.Tensor, labels: torch.Tensor) -> None:
    rows = recording.split_samples(ids, position_ids=positions)
    label_rows = recording.split_samples(labels, position_ids=positions)
    samples = [row for row, label in zip(rows, label_rows, strict=True) if (label != -100).any()]
    recording.note(
        "batch", step=step, epoch=step // STEPS_OF_EPOCH, slots=ids.numel(),
        samples=[recording.fingerprint(row) for row in samples],
        lengths=[len(row) for row in samples], labels=int((labels != -100).sum()),
    )  # fmt: skip


def _clip(parameters: list[Any], *args: Any, **named: Any) -> Any:
    recording.save_gradients((str(number), each) for number, each in enumerate(parameters))
    return clip(parameters, *args, **named)


def _log(self: Any, step: int, average: float, largest: float, norm: float, **named: Any) -> None:
    rate = next(v for k, v in named["extra_metrics"].items() if "lr" in k)
    recording.note_step(step - 1, average, norm, rate)
    log(self, step, average, largest, norm, **named)


trainer.Trainer.train_step, trainer.dist_utils.clip_grad_norm_ = _train, _clip
MetricsProcessor.log = _log
