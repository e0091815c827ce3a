"""Notes what nanoVLM's train.py trains on. A row's samples are split where its mask is 0."""

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from tests.programs import recording

recording.note_plans()
data_utils: Any = import_module("data.data_utils")
model_class: Any = import_module("models.vision_language_model").VisionLanguageModel
take_batches, forward = data_utils.synchronized_dataloader_step, model_class.forward
clip, optimizer_step = torch.nn.utils.clip_grad_norm_, torch.optim.AdamW.step


class Progress:
    """Where the training is; and of the step in progress, its losses and its gradient's norm."""

    epoch, step, training = -1, 0, False
    model: Any = None
    weights: Any = None  # of the beginning
    norm = 0.0
    losses: list[float] = []  # noqa: RUF012  of this process
    taken: list[Any] = []  # noqa: RUF012  the batches of the first step


def split_rows(ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """Return the ids of the samples of rows; each sample ends at a token that is masked."""
    samples = []
    for row, kept in zip(ids, mask, strict=True):
        edges = (kept.diff().nonzero().flatten() + 1).tolist()
        pieces = zip(row.tensor_split(edges), kept.tensor_split(edges), strict=True)
        samples += [piece for piece, flags in pieces if flags[0]]
    return samples


def take_and_note(loader: Any, is_dist: bool) -> Iterator[Any]:
    """Yield an epoch's batches, in whose midst are those of evaluations."""
    if Progress.training:
        for batch in take_batches(loader, is_dist):
            note(batch, "evaluation", step=Progress.step)
            yield batch
        return
    Progress.training, Progress.epoch = True, Progress.epoch + 1
    Progress.losses.clear()  # of a step that the epoch before did not fill
    for batch in take_batches(loader, is_dist):
        note(batch, "batch", step=Progress.step, epoch=Progress.epoch)
        if not Progress.step:
            Progress.taken.append(batch)
        yield batch
    Progress.training = False


def note(batch: dict[str, Any], kind: str, **fields: Any) -> None:
    """Note the samples of a batch, and what its tensors hold."""
    samples = split_rows(batch["input_ids"], batch["attention_mask"])
    fields["samples"] = [recording.fingerprint(sample) for sample in samples]
    recording.note(
        kind, **fields, lengths=[len(sample) for sample in samples],
        slots=batch["input_ids"].numel(), tiles=sum(len(i) for row in batch["images"] for i in row),
        labels=int((batch["labels"] != -100).sum()),
    )  # fmt: skip


def forward_and_note(self: Any, *args: Any, **named: Any) -> Any:
    if Progress.weights is None:
        Progress.weights = {name: value.clone() for name, value in self.state_dict().items()}
    logits, loss = forward(self, *args, **named)
    if self.training:
        Progress.model = self
        Progress.losses.append(float(loss))
    else:
        recording.note("evaluated", step=Progress.step, loss=float(loss))
    return logits, loss


def clip_and_note(*args: Any, **named: Any) -> torch.Tensor:
    recording.save_gradients(Progress.model.named_parameters())
    norm = clip(*args, **named)
    Progress.norm = float(norm)
    return norm


def step_and_note(self: Any, *args: Any, **named: Any) -> Any:
    if not Progress.step:
        path = f"{os.environ['RECORD']}-first-{dist.get_rank()}.pt"
        torch.save((Progress.weights, Progress.taken), path)
    mean = torch.tensor(Progress.losses).mean()
    dist.all_reduce(mean)
    rate = self.param_groups[0]["lr"]
    recording.note_step(Progress.step, float(mean) / dist.get_world_size(), Progress.norm, rate)
    Progress.losses.clear()
    Progress.step += 1
    return optimizer_step(self, *args, **named)


data_utils.synchronized_dataloader_step, model_class.forward = take_and_note, forward_and_note
parameters: Any = torch.nn.utils
parameters.clip_grad_norm_ = clip_and_note
adamw: Any = torch.optim.AdamW
adamw.step = step_and_note
