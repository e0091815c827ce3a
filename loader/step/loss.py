"""Scales a microbatch's loss to its share of the global mean.

Microbatches differ in samples and in label tokens, so a mean of their means weighs a token by the
luck of its group. The one right mean divides the sum over everything by the count of everything:

    L = (sum over ranks and microbatches of loss_sum) / (count in the global batch)

Gradients are summed over a rank's microbatches by autograd. Over the ranks, DDP and FSDP average
them, which divides by `ranks` once too often: so each share is multiplied by `ranks`.
"""

import math
from typing import Literal, get_args

import torch

from .info import StepInfo

Weighting = Literal["token", "sample"]
Reduction = Literal["mean", "sum"]
WEIGHTINGS: tuple[Weighting, ...] = get_args(Weighting)
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)


def scale_loss(
    loss_sum: torch.Tensor,
    info: StepInfo,
    per: Weighting = "token",
    reduction: Reduction = "mean",
    divided_by: float = 1,
) -> torch.Tensor:
    """Turn a microbatch's local sum of losses into its share of the global batch's mean.

    per="token": loss_sum is the sum over label tokens, and the mean is over all label tokens of
    the step. per="sample": loss_sum is the sum over samples of each sample's own mean (0 for a
    sample without label tokens), and the mean is over all samples of the step.
    reduction: how gradients are combined over ranks: "mean" (DDP, FSDP) or "sum".
    divided_by: the number that a framework divides each microbatch's loss by before the backward
    pass, such as its accumulation steps; docs/loss.md has them.

    A microbatch with nothing to learn gives exactly 0, still connected to the graph, so that
    every rank runs the same collectives. Raises ValueError for an unknown per or reduction, a
    divided_by that is no positive number, a step that has nothing to average over, and an empty
    microbatch whose loss is not a sum.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"unknown reduction {reduction!r}; use one of {', '.join(REDUCTIONS)}")
    if not 0 < divided_by < math.inf:
        raise ValueError(
            f"divided_by is {divided_by!r}, allowed is a positive number: what the framework "
            "divides each microbatch's loss by, such as its accumulation steps"
        )
    here, whole = _counts(info, per)
    if whole == 0:
        raise ValueError(
            f"step {info.step} has no {per}s to average over ({info.step_samples} samples, "
            f"{info.step_label_tokens} label tokens); leave its optimizer step out or raise "
            "samples_per_step; or nothing counts label tokens: a cost 'label_tokens' does, the one "
            "that Balance(label_tokens=...) names, or the loader with label_tokens='batch'"
        )
    if here == 0:
        return _nothing(loss_sum, info, per)
    return loss_sum * (divided_by * (info.ranks if reduction == "mean" else 1) / whole)


def _counts(info: StepInfo, per: str) -> tuple[int, int]:
    """Return the counts averaged over: (of the microbatch, of the global batch)."""
    if per == "token":
        return info.label_tokens, info.step_label_tokens
    if per == "sample":
        return info.samples, info.step_samples
    raise ValueError(f"unknown weighting per={per!r}; use one of {', '.join(WEIGHTINGS)}")


def _nothing(loss_sum: torch.Tensor, info: StepInfo, per: str) -> torch.Tensor:
    if not bool(torch.isfinite(loss_sum.detach()).all()):
        raise ValueError(
            f"microbatch {info.microbatch} of step {info.step} has no {per}s, but its loss is "
            f"{loss_sum.detach()}; pass a sum of losses (reduction='sum'), not their mean"
        )
    return loss_sum * 0.0
