"""The loss of a vocabulary that is divided over ranks, from a few statistics of each token.

With z the logits of a token (after the softcap), g its label, V the size of the vocabulary, e the
label smoothing and l the weight of the z-loss,

    log Z = log sum_j exp z_j
    loss  = log Z - (1 - e) z_g - e/V sum_j z_j + l (log Z)^2

which is `torch.nn.functional.cross_entropy` with label smoothing, plus the z-loss. A rank that
holds part of the columns computes its maximum, the sum of exponentials relative to it, the logit of
the label if the column is its own, and the sum of its logits. These three or four numbers a token
are all that ranks exchange; from those of all, each rank computes the same loss and log Z.

Statistics are in single precision (double, where the model is), whatever the model computes in.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# Rows of the statistics of a microbatch, each with a value per token.
MAXIMUM, EXPONENTIALS, LABEL, TOTAL = range(4)


@dataclass(frozen=True, slots=True)
class LossOptions:
    """The options of the loss.

    `ignore_index`: the label of tokens that do not count. `label_smoothing`: as in torch's
    cross_entropy, 0 to 1. `z_loss`: the weight of the square of log Z (PaLM, 2022). `softcap`:
    logits y become softcap * tanh(y / softcap) (Gemma 2, 2024), None for none.
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a smoothing outside 0 to 1, a negative z-loss, a softcap of 0."""
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing={self.label_smoothing}; give a number from 0 to 1")
        if self.z_loss < 0:
            raise ValueError(f"z_loss={self.z_loss}; give a weight of 0 or more")
        if self.softcap is not None and self.softcap <= 0:
            raise ValueError(f"softcap={self.softcap}; give a positive number, or None for none")

    @property
    def statistics(self) -> int:
        """Return how many statistics a token has: the sum of logits is for smoothing alone."""
        return 4 if self.label_smoothing else 3


class Targets(NamedTuple):
    """The labels of a microbatch as one shard sees them, each (tokens,).

    `column`: the label's column in the shard, 0 if it is on another. `owned`: whether it is here.
    `weight`: what the token's loss counts: 0 where ignored, NaN where the label does not exist.
    """

    column: Tensor
    owned: Tensor
    weight: Tensor


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision of statistics for a model that computes in `dtype`."""
    return torch.promote_types(dtype, torch.float32)


def make_targets(
    labels: Tensor,
    options: LossOptions,
    *,
    size: int,
    start: int,
    real: int,
    weight: float,
    dtype: torch.dtype,
) -> Targets:
    """Return the targets of `labels` (tokens,) for a shard with columns [start, start + real).

    `size`: of the vocabulary. `weight`: the share of the step's loss that this microbatch's tokens
    have, each. Raises ValueError for a label outside the vocabulary, on the CPU; elsewhere that
    would make the processor wait, so the loss becomes NaN instead.
    """
    counted = labels != options.ignore_index
    missing = counted & ((labels < 0) | (labels >= size))
    if labels.device.type == "cpu" and bool(missing.any()):
        label = int(labels[missing][0])
        raise ValueError(
            f"label {label} is not in the vocabulary of {size} words; give labels from 0 to "
            f"{size - 1}, or ignore_index ({options.ignore_index}) for tokens without a label"
        )
    column = labels.long() - start
    owned = counted & (column >= 0) & (column < real)
    share = torch.zeros_like(column, dtype=dtype).masked_fill_(counted, weight)
    return Targets(column.masked_fill(~owned, 0), owned, share.masked_fill_(missing, float("nan")))


def local_maximum(logits: Tensor) -> Tensor:
    """Return the largest of logits (tokens, columns), finite without columns or if all are -inf."""
    lowest = torch.finfo(logits.dtype).min
    if logits.shape[1] == 0:
        return logits.new_full((logits.shape[0],), lowest)
    return logits.amax(1).clamp_(min=lowest)


def local_statistics(
    logits: Tensor, maximum: Tensor, exponentials: Tensor, targets: Targets, options: LossOptions
) -> Tensor:
    """Return the statistics, (3 or 4, tokens). `exponentials`: exp(logits - maximum)."""
    statistics = logits.new_zeros(options.statistics, logits.shape[0])
    statistics[MAXIMUM] = maximum
    if logits.shape[1] == 0:
        return statistics
    statistics[EXPONENTIALS] = exponentials.sum(1)
    label = logits.gather(1, targets.column[:, None])[:, 0]
    statistics[LABEL] = label.masked_fill_(~targets.owned, 0)
    if options.label_smoothing:
        statistics[TOTAL] = logits.sum(1)
    return statistics


def merge(
    gathered: Tensor, size: int, targets: Targets, options: LossOptions
) -> tuple[Tensor, Tensor]:
    """Return log Z (tokens,), and the microbatch's share of the step's loss, without gradient.

    `gathered`: the statistics (ranks, 3 or 4, tokens) of all shards. `size`: of the vocabulary.

    >>> one = torch.tensor([[[0.0], [1.0], [0.0]]])  # one shard with one logit, the label's: 0
    >>> every = Targets(torch.tensor([0]), torch.tensor([True]), torch.tensor([1.0]))
    >>> merge(one, 1, every, LossOptions())
    (tensor([0.]), tensor(0.))
    """
    maximum = gathered[:, MAXIMUM].amax(0)
    exponentials = gathered[:, EXPONENTIALS] * (gathered[:, MAXIMUM] - maximum).exp()
    log_normalizer = maximum + exponentials.sum(0).log()
    smoothing = options.label_smoothing
    losses = log_normalizer - (1 - smoothing) * gathered[:, LABEL].sum(0)
    if smoothing:
        losses = losses - gathered[:, TOTAL].sum(0) * (smoothing / size)
    if options.z_loss:
        losses = losses + options.z_loss * log_normalizer.square()
    # A token that is ignored counts nothing, even if its own loss is infinite.
    return log_normalizer, (losses.masked_fill(targets.weight == 0, 0) * targets.weight).sum()
