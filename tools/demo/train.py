"""The demo's training loop: one process plays the microbatches of all ranks in turn."""

import time
from collections.abc import Callable, Iterable, Iterator

import torch

from ...loader.step.info import Step
from ...loader.step.loss import scale_loss
from .measure import StepRecord, measure_step
from .model import DemoModelShape, VisionLanguageModel, sum_loss

LEARNING_RATE = 2e-3


def train(
    steps: Iterable[Step],
    shape: DemoModelShape,
    seed: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[StepRecord]:
    """Train a new model, made from the seed, on every step; yield each step's record.

    The gradients of all ranks meet in one process, so the shares are summed (reduction="sum"):
    a step's gradient is that of the mean loss over all label tokens of its global batch.
    """
    torch.manual_seed(seed)
    model = VisionLanguageModel(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    asked = clock()
    for step in steps:
        wait_s = clock() - asked
        loss = accumulate(model, step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield measure_step(shape, step, loss, wait_s)
        asked = clock()


def accumulate(model: VisionLanguageModel, step: Step) -> float:
    """Add a step's gradients to the model's; return the mean loss per label token."""
    total = 0.0
    for batch, info in zip(step.microbatches, step.infos, strict=True):
        loss_sum = sum_loss(model(batch), batch["labels"])
        loss = scale_loss(loss_sum, info, per="token", reduction="sum")
        torch.autograd.backward(loss)
        total += loss.item()
    return total
