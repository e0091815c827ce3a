"""Names why a model's loss depends on how samples are batched, by experiments on few samples.

Each changes one thing that must not matter and looks whether the loss does: tokens of the sample
before, what rows are filled up with, labels of others.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ...workers.collate.fields import Batch
from ...workers.sources.labels import IGNORED
from ..models.kwargs import hf_kwargs
from ..models.proof import compare_pack
from ..step.info import moved

Sample = dict[str, Any]
# (model, batch) -> the sum of the losses of the batch's label tokens.
LossSum = Callable[[Any, Batch], Tensor]
# Tokens that a row is filled up with where padding is tried.
FILLED = 8
BORDERS = (
    "attention across borders: a packed sample's loss changes with the tokens of the sample before "
    "it; the model must use cu_seq_lens or position_ids (Hugging Face: cp.hf_kwargs(batch, model))"
)
POSITIONS = (
    "position ids: a packed sample's loss is not what it is alone, though it does not see the "
    "sample before it; positions must restart with every sample (batch['position_ids'])"
)
PADDING = (
    "attention to padding: the loss changes with pad_id; the model must use attention_mask, and "
    "the loss must leave out labels -100"
)
UNLABELLED = (
    "a term over tokens without a label: with no label at all the loss is not 0, as with a z-loss, "
    "an auxiliary loss or a label smoothing that counts them; sum it over label tokens only"
)
MEAN = (
    "a mean: the loss of the same sample twice is not twice its loss; give the sum over label "
    "tokens (reduction='sum'), which scale_loss() divides"
)
NOT_PLAIN = (
    "not the plain cross-entropy: the model's own loss has another term (z-loss, an auxiliary "
    "loss) or label smoothing, and its mean is over other tokens than those with a label"
)


def hf_loss_sum(model: Any, batch: Batch) -> Tensor:
    """Return a Hugging Face causal model's loss, summed over label tokens; text only.

    Raises ValueError for a batch with images, whose inputs are each model's own.
    """
    if "pixel_values" in batch:
        raise ValueError(
            "batches have images, and each model takes them in its own way: give loss=, a function "
            "from (model, batch) to the sum of the losses of its label tokens"
        )
    output = model(input_ids=batch["input_ids"], labels=batch["labels"], **_told(batch, model))
    count = int((batch["labels"][..., 1:] != IGNORED).sum())
    total: Tensor = output.loss * count if count else output.logits.sum() * 0.0
    return total


def _cross_entropy(model: Any, batch: Batch) -> Tensor:
    """Return the sum of cross-entropies of a Hugging Face causal model's logits, nothing added."""
    logits = model(input_ids=batch["input_ids"], **_told(batch, model)).logits
    logits, targets = logits[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten()
    return functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")


def _told(batch: Batch, model: Any) -> dict[str, Any]:
    if "cu_seq_lens" in batch:
        return hf_kwargs(batch, model)
    return {"attention_mask": batch["attention_mask"], "use_cache": False}


def find_causes(
    model: torch.nn.Module,
    loss: LossSum,
    samples: Sequence[Sample],
    tolerance: float,
    collate: Callable[..., Batch],
) -> list[str]:
    """Return what differs, of all that can be found out with these samples.

    collate: makes a batch of a base, "padded" or "packed", and samples. The plain cross-entropy is
    known for hf_loss_sum only.
    """
    device = next(iter(model.parameters()), torch.zeros(())).device

    def total(base: str, some: Sequence[Sample], by: LossSum = loss, **more: int) -> float:
        return float(by(model, moved(collate(base, some, **more), device)))

    def losses_of(pack: Sequence[Sample]) -> list[Tensor]:
        """Return each sample's own loss in a pack, (1, 1, 1)."""
        labelled = [
            [each if place == number else _unlabelled(each) for place, each in enumerate(pack)]
            for number in range(len(pack))
        ]
        return [torch.tensor([[[total("packed", each)]]], dtype=torch.float64) for each in labelled]

    def is_far(one: float, other: float) -> bool:
        return not abs(one - other) <= tolerance * max(abs(one), abs(other))

    usable = [
        sample
        for sample in samples
        if (sample["labels"] != IGNORED).any() and not len(sample.get("pixel_values", ()))
    ]
    if not usable:
        return []
    one, other = usable[0], max(usable[1:] or usable, key=lambda s: len(s["input_ids"]))
    alone = total("padded", [one])
    if abs(total("padded", [_unlabelled(one)])) > tolerance * abs(alone):
        return [UNLABELLED]  # whatever is changed, its own loss changes: nothing else shows
    # each token another one; ids 0 and 1 are in every vocabulary
    known = np.unique([0, 1, *one["input_ids"]])
    tokens = known[(np.searchsorted(known, one["input_ids"]) + 1) % len(known)]
    separate = [*losses_of([one]), *losses_of([other])]
    crossed, off = compare_pack(losses_of, [one, other], {**one, "input_ids": tokens}, separate)
    twice, longer = total("padded", [one, one]), len(one["input_ids"]) + FILLED
    found = (
        (BORDERS, crossed > tolerance),
        (POSITIONS, crossed <= tolerance < float(off[-1])),
        (PADDING, is_far(*(total("padded", [one], length=longer, pad_id=n) for n in (0, 1)))),
        (MEAN, abs(twice - alone) < abs(twice - 2 * alone)),
        (NOT_PLAIN, loss is hf_loss_sum and is_far(alone, total("padded", [one], _cross_entropy))),
    )
    return [name for name, differs in found if differs]


def _unlabelled(sample: Sample) -> Sample:
    return {**sample, "labels": np.full(len(sample["input_ids"]), IGNORED)}
