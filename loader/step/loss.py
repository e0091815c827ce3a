"""Scales a microbatch's loss to its share of the global mean, framework by framework.

Microbatches differ in samples and in label tokens, so a mean of their means weighs a token by the
luck of its group. The one right mean divides the sum over everything by the count of everything:

    L = (sum over ranks and microbatches of loss_sum) / (count in the global batch)

Gradients are summed over a rank's microbatches by autograd. Over the ranks, DDP and FSDP average
them, which divides by `ranks` once too often: so each share is multiplied by `ranks`.

What a framework divides by itself is in a table, for code and loss.md; each rule was read in
the version that it names. What a training step hands to the framework is right when, after all that
the framework does to it, gradients are those of the mean over the global batch.
"""

import math
from dataclasses import dataclass, replace
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

    read: the version whose source says so. divides: what it divides by before the backward pass, in
    words; by_accumulation: whether that is its number of microbatches a step. reduction: how it
    combines gradients over ranks. normalizes: it divides sums by the label tokens of the global
    batch itself, so that scale_loss() must not: hand it what its own models do.
    """

    framework: Framework
    read: str
    divides: str
    by_accumulation: bool
    reduction: Reduction
    normalizes: bool = False
    accumulate: int = 1

    def scale(
        self, loss_sum: torch.Tensor, info: StepInfo, per: Weighting = "token"
    ) -> torch.Tensor:
        """Return what to hand to the framework for a microbatch's sum of losses; see scale_loss.

        Raises ValueError for a framework that normalizes the loss itself, and as scale_loss does.
        """
        if self.normalizes:
            raise ValueError(
                f"{self.framework!r} divides by the label tokens of the global batch itself "
                f"({self.divides}): leave scale_loss() and this out, or gradients are divided twice"
            )
        divisor = self.accumulate if self.by_accumulation else 1
        return scale_loss(loss_sum, info, per, self.reduction, divided_by=divisor)


_RULES = (
    LossRule("ddp", "torch 2.13", "nothing", False, "mean"),
    LossRule("fsdp", "torch 2.13", "nothing", False, "mean"),
    LossRule("sum", "-", "nothing", False, "sum"),
    LossRule("accelerate", "1.15", "gradient_accumulation_steps, in backward()", True, "mean"),
    LossRule("lightning", "2.6", "accumulate_grad_batches, in the closure", True, "mean"),
    LossRule("fabric", "2.6", "nothing", False, "mean"),
    LossRule(
        "trainer", "transformers 5.23", "num_items_in_batch, the label tokens of all ranks", False,
        "mean", normalizes=True,
    ),
    LossRule(
        "trainer-divides", "transformers 5.23", "gradient_accumulation_steps, in training_step()",
        True, "mean",
    ),
    LossRule(
        "torchtitan", "0.3", "global_valid_tokens, summed over ranks", False, "sum",
        normalizes=True,
    ),
)  # fmt: skip
RULES: dict[Framework, LossRule] = {rule.framework: rule for rule in _RULES}


def loss_rule(framework: Framework, accumulate: int = 1) -> LossRule:
    """Return what a framework does to a loss, with its number of microbatches a step.

    accumulate: what the framework is told (gradient_accumulation_steps, accumulate_grad_batches),
    which must be the loader's. Raises ValueError for a framework that is not in the table.

    >>> loss_rule("lightning", accumulate=4).divides
    'accumulate_grad_batches, in the closure'
    """
    more = ': for any other, "ddp" where it averages over ranks, and scale_loss(divided_by=)'
    check_name("framework", framework, FRAMEWORKS, more)
    if type(accumulate) is not int or accumulate < 1:
        raise ValueError(f"accumulate is {accumulate!r}, allowed is a positive integer")
    return replace(RULES[framework], accumulate=accumulate)
