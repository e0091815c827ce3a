"""The sum of a model's losses over a batch, and its gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...step.info import StepInfo
from ...step.loss import scale_loss
from ..hugging_face import hf_kwargs
from ..layouts import Batch

# (model, batch) -> the sum of the losses of the batch's label tokens.
LossSum = Callable[[Any, Batch], Tensor]
IGNORED = -100


def hf_loss_sum(model: Any, batch: Batch) -> Tensor:
    """Return a Hugging Face causal model's loss, summed over label tokens; text only.

    Raises ValueError for a batch with images, whose inputs are each model's own.
    """
    if "pixel_values" in batch:
        raise ValueError(
            "batches have images, and each model takes them in its own way: give loss=, a function "
            "from (model, batch) to the sum of the losses of its label tokens"
        )
    output = model(input_ids=batch["input_ids"], labels=batch["labels"], **_told(batch))
    count = int((batch["labels"][..., 1:] != IGNORED).sum())
    total: Tensor = output.loss * count if count else output.logits.sum() * 0.0
    return total


def plain_cross_entropy(model: Any, batch: Batch) -> Tensor:
    """Return the sum of cross-entropies of a Hugging Face causal model's logits, nothing added."""
    logits = model(input_ids=batch["input_ids"], **_told(batch)).logits
    targets = batch["labels"][:, 1:].flatten()
    return functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), targets, ignore_index=IGNORED, reduction="sum"
    )


def _told(batch: Batch) -> dict[str, Any]:
    if "cu_seq_lens" in batch:
        return hf_kwargs(batch)
    return {"attention_mask": batch["attention_mask"], "use_cache": False}


@dataclass(frozen=True, slots=True)
class LossOutcome:
    """A loss, and its gradient with respect to each trained parameter, by name."""

    loss: float
    gradients: dict[str, Tensor]

    def distance(self, other: "LossOutcome") -> tuple[float, float, str]:
        """Return how far another is from this: loss, gradient, and the parameter farthest off.

        Relative to this loss, and to each tensor's largest value (or a thousandth of the largest of
        all, as what is zero but for rounding has no size of its own).
        """
        of_loss = abs(other.loss - self.loss) / max(abs(self.loss), 1e-12)
        largest = {name: float(g.abs().max()) for name, g in self.gradients.items() if g.numel()}
        floor = max(largest.values(), default=0.0) / 1000 or 1.0
        off = {
            name: float((other.gradients[name] - self.gradients[name]).abs().max())
            / max(size, floor)
            for name, size in largest.items()
        }
        worst = max(off, key=lambda name: off[name], default="")
        return of_loss, off.get(worst, 0.0), worst


def outcome(model: nn.Module, shares: Sequence[Callable[[], Tensor]]) -> LossOutcome:
    """Return the sum of some losses and its gradient; the model's own `.grad` stay as they are."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total, sums = 0.0, {name: torch.zeros_like(p) for name, p in trained.items()}
    for share in shares:
        loss = share()
        total += float(loss.detach())
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        for name, gradient in zip(trained, found, strict=True):
            if gradient is not None:
                sums[name] += gradient
    return LossOutcome(total, sums)


def part_of_mean(loss_sum: Tensor, info: StepInfo, labelled: int) -> Tensor:
    """Return a microbatch's share, by scale_loss, of the mean over `labelled` tokens of a step."""
    part = scale_loss(loss_sum, info, reduction="sum")
    return part * (info.step_label_tokens / max(labelled, 1))
