"""Gives open_clip a tiny model, and notes what it trains on."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip_train import train

from tests.programs import recording

open_clip.add_model_config(Path(__file__).parent / "tiny.json")
train_one_epoch, backward = train.train_one_epoch, train.backward


class NotedLoader:
    """A loader of pictures and captions that notes the captions of its batches."""

    def __init__(self, loader: Any, epoch: int) -> None:
        self.loader, self.epoch = loader, epoch
        self.num_batches, self.num_samples = loader.num_batches, loader.num_samples

    def __iter__(self) -> Iterator[Any]:
        for number, (images, texts) in enumerate(self.loader):
            step = self.epoch * self.num_batches + number
            recording.note_batch(step, self.epoch, texts, texts != 0)
            yield images, texts


def _train(
    model: Any, data: Any, loss: Any, epoch: int, optimizer: Any, *args: Any, **named: Any
) -> None:
    loader = NotedLoader(data["train"].dataloader, epoch)
    step = epoch * loader.num_batches

    def note_and_go_back(total: Any, scaler: Any) -> None:
        nonlocal step
        backward(total, scaler)
        parameters = list(model.named_parameters())
        recording.save_gradients(parameters)
        norm = torch.stack([each.grad.norm() for _, each in parameters]).norm()
        rate = optimizer.param_groups[0]["lr"]
        recording.note_step(step, float(total.detach()), float(norm), rate)
        step += 1

    train.backward = note_and_go_back
    noted = {**data, "train": dataclasses.replace(data["train"], dataloader=loader)}
    train_one_epoch(model, noted, loss, epoch, optimizer, *args, **named)


train.train_one_epoch = _train
