"""Scales a microbatch's loss to its share of the global mean, framework by framework.

Microbatches differ in samples and in label tokens, so a mean of their means weighs a token by the
luck of its group. The one right mean divides the sum over everything by the count of everything:

    L = (sum over ranks and microbatches of loss_sum) / (count in the global batch)

Gradients are summed over a rank's microbatches by autograd. Over the ranks, DDP and FSDP average
them, which divides by `ranks` once too often: so each share is multiplied by `ranks`, and by what
a framework divides by (loss.md).
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from ...balancer.near_names import check_name
from .info import StepInfo

Weighting = Literal["token", "sample"]
Reduction = Literal["mean", "sum"]
WEIGHTINGS: tuple[Weighting, ...] = get_args(Weighting)
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
Framework = Literal[
    "ddp", "fsdp", "sum", "accelerate", "lightning", "fabric", "trainer", "trainer-divides",
    "torchtitan",
]  # fmt: skip
FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)
# Read in torch 2.13, accelerate 1.15, lightning 2.6, transformers 5.23 and torchtitan 0.3: those
# that divide by their accumulation, by the label tokens of all ranks, and that sum gradients.
DIVIDE = ("accelerate", "lightning", "trainer-divides")
NORMALIZE = ("trainer", "torchtitan")
SUM = ("sum", "torchtitan")


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
    pass, such as its accumulation steps; docs/guides/loss.md has them.

    A microbatch with nothing to learn gives exactly 0, still connected to the graph, so that
    every rank runs the same collectives. Raises ValueError for an unknown per or reduction, a
    divided_by that is no positive number, a step that has nothing to average over, and an empty
    microbatch whose loss is not a sum.
    """
    check_name("reduction", reduction, REDUCTIONS)
    if not 0 < divided_by < math.inf:
        raise ValueError(
            f"divided_by is {divided_by!r}, allowed is a positive number: what the framework "
            "divides each microbatch's loss by, such as its accumulation steps"
        )
    check_name("per", per, WEIGHTINGS)
    here, whole = info.samples, info.step_samples
    if per == "token":
        here, whole = info.label_tokens, info.step_label_tokens
    if whole == 0:
        raise ValueError(
            f"step {info.step} has no {per}s to average over ({info.step_samples} samples, "
            f"{info.step_label_tokens} label tokens); leave its optimizer step out or raise "
            "samples_per_step; or nothing counts label tokens: a cost 'label_tokens' does, the one "
            "that Balance(label_tokens=...) names, or the batches: Balance(label_tokens='batch')"
        )
    if here == 0:
        if not bool(torch.isfinite(loss_sum.detach()).all()):
            raise ValueError(
                f"microbatch {info.microbatch} of step {info.step} has no {per}s, but its loss is "
                f"{loss_sum.detach()}; pass a sum of losses (reduction='sum'), not their mean"
            )
        return loss_sum * 0.0
    return loss_sum * (divided_by * (info.ranks if reduction == "mean" else 1) / whole)


@dataclass(frozen=True, slots=True)
class LossRule:
    """The treatment of each microbatch's loss by a framework, and so what to hand over to it.

    divided_by: what it divides by before the backward pass. reduction: how it combines gradients
    over ranks. normalizes: it divides sums by the label tokens of the global batch itself, so that
    scale_loss() must not: hand it what its own models do.
    """

    framework: Framework
    divided_by: int
    reduction: Reduction
    normalizes: bool

    def scale(
        self, loss_sum: torch.Tensor, info: StepInfo, per: Weighting = "token"
    ) -> torch.Tensor:
        """Return what to hand to the framework for a microbatch's sum of losses; see scale_loss.

        Raises ValueError for a framework that normalizes the loss itself, and as scale_loss does.
        """
        if self.normalizes:
            raise ValueError(
                f"{self.framework!r} divides by the label tokens of the global batch itself: leave "
                "scale_loss() and this out, or gradients are divided twice"
            )
        return scale_loss(loss_sum, info, per, self.reduction, divided_by=self.divided_by)


def loss_rule(framework: Framework, accumulate: int = 1) -> LossRule:
    """Return what a framework does to a loss, with its number of microbatches a step.

    accumulate: what the framework is told (gradient_accumulation_steps, accumulate_grad_batches),
    which must be the loader's. Raises ValueError for a framework that is not known.

    >>> loss_rule("lightning", accumulate=4)
    LossRule(framework='lightning', divided_by=4, reduction='mean', normalizes=False)
    """
    more = ': for any other, "ddp" where it averages over ranks, and scale_loss(divided_by=)'
    check_name("framework", framework, FRAMEWORKS, more)
    if type(accumulate) is not int or accumulate < 1:
        raise ValueError(f"accumulate is {accumulate!r}, allowed is a positive integer")
    return LossRule(
        framework,
        divided_by=accumulate if framework in DIVIDE else 1,
        reduction="sum" if framework in SUM else "mean",
        normalizes=framework in NORMALIZE,
    )
