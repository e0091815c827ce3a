"""Names why a model's loss depends on how samples are batched, by experiments on few samples.

Each changes one thing that must not matter and looks whether the loss does: tokens of the sample
before, what rows are filled up with, labels of others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..step.info import StepInfo
from ..step.loss import scale_loss
from .hugging_face import hf_kwargs
from .layouts import Batch, collate_packed, collate_padded

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


Sample = dict[str, Any]
# Tokens that a row is filled up with where padding is tried.
FILLED = 8
BORDERS = (
    "attention across borders: a packed sample's loss changes with the tokens of the sample before "
    "it; the model must use cu_seq_lens or position_ids (Hugging Face: cp.hf_kwargs(batch))"
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


@dataclass(frozen=True, slots=True)
class Experiments:
    """The experiments on a model: `loss` as in check_equivalence, `place` moves a batch to it."""

    model: Any
    loss: LossSum
    place: Callable[[Batch], Batch]
    tolerance: float

    def causes(self, samples: Sequence[Sample]) -> tuple[str, ...]:
        """Return what differs, of all that can be found out with these samples."""
        usable = [s for s in samples if (s["labels"] != IGNORED).any() and not _has_images(s)]
        if not usable:
            return ()
        one, other = usable[0], max(usable[1:] or usable, key=lambda s: len(s["input_ids"]))
        if self.has_unlabelled_terms(one):
            return (UNLABELLED,)  # whatever is changed, its own loss changes: nothing else shows
        tests: list[tuple[str, Callable[[], bool]]] = [
            (BORDERS, lambda: self.crosses_borders(one, other)),
            (POSITIONS, lambda: self.continues_positions(one, other)),
            (PADDING, lambda: self.sees_padding(one, other)),
            (MEAN, lambda: self.is_a_mean(one)),
            (NOT_PLAIN, lambda: self.is_not_plain(one)),
        ]
        return tuple(name for name, differs in tests if differs())

    def crosses_borders(self, one: Sample, other: Sample) -> bool:
        """Return whether a packed sample's loss changes with the tokens of the one before it."""
        before = _unlabelled(one)
        changed = {**before, "input_ids": _other_tokens(one["input_ids"])}
        packs = [collate_packed([first, other]) for first in (before, changed)]
        return self._is_far(*map(self._sum, packs))

    def continues_positions(self, one: Sample, other: Sample) -> bool:
        """Return whether a packed sample's loss changes with its place, and with nothing else."""
        if self.crosses_borders(one, other):
            return False
        packs = collate_packed([_unlabelled(one), other]), collate_packed([other])
        return self._is_far(*map(self._sum, packs))

    def sees_padding(self, one: Sample, other: Sample) -> bool:
        """Return whether a padded row's loss changes with what it is filled up with."""
        longer = np.resize(other["input_ids"], len(one["input_ids"]) + FILLED)
        rows = [one, _unlabelled({**other, "input_ids": longer})]
        filled = [self._sum(collate_padded(rows, pad_id=pad)) for pad in (0, 1)]
        return self._is_far(*filled)

    def has_unlabelled_terms(self, one: Sample) -> bool:
        """Return whether there is a loss where there is no label."""
        size = abs(self._sum(collate_padded([one])))
        return abs(self._sum(collate_padded([_unlabelled(one)]))) > self.tolerance * size

    def is_a_mean(self, one: Sample) -> bool:
        """Return whether the loss of the same sample twice is its loss."""
        once, twice = self._sum(collate_padded([one])), self._sum(collate_padded([one, one]))
        return abs(twice - once) < abs(twice - 2 * once)

    def is_not_plain(self, one: Sample) -> bool:
        """Return whether a Hugging Face model's loss is not its logits' cross-entropy."""
        if self.loss is not hf_loss_sum:
            return False
        batch = self.place(collate_padded([one]))
        with torch.no_grad():
            plain = float(plain_cross_entropy(self.model, batch))
        return self._is_far(self._sum(collate_padded([one])), plain)

    def _sum(self, batch: Batch) -> float:
        with torch.no_grad():
            return float(self.loss(self.model, self.place(batch)))

    def _is_far(self, one: float, other: float) -> bool:
        return not abs(one - other) <= self.tolerance * max(abs(one), abs(other))


def _other_tokens(ids: Any) -> Any:
    """Return as many tokens, each another one; ids 0 and 1 are in every vocabulary.

    >>> _other_tokens(np.array([0, 7, 1, 7])).tolist()
    [1, 0, 7, 0]
    """
    known = np.unique([0, 1, *ids])
    return known[(np.searchsorted(known, ids) + 1) % len(known)]


def _has_images(sample: Sample) -> bool:
    return len(sample.get("pixel_values", ())) > 0


def _unlabelled(sample: Sample) -> Sample:
    return {**sample, "labels": np.full(len(sample["input_ids"]), IGNORED)}
