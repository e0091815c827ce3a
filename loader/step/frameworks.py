"""Rules of who divides a loss by what, framework by framework: for code and docs/loss.md.

Each rule was read in the version that it names. What a training step hands to the framework is
right when, after all that the framework does to it, gradients are those of the mean over the global
batch.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from .info import StepInfo
from .loss import Reduction, Weighting, scale_loss

Framework = Literal[
    "ddp", "fsdp", "sum", "accelerate", "lightning", "fabric", "trainer", "trainer-divides",
    "torchtitan",
]  # fmt: skip
FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)


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
    if framework not in RULES:
        raise ValueError(
            f"framework is {framework!r}, allowed are {', '.join(map(repr, FRAMEWORKS))}: for any "
            'other, "ddp" where it averages gradients over ranks, and scale_loss(divided_by=)'
        )
    if type(accumulate) is not int or accumulate < 1:
        raise ValueError(f"accumulate is {accumulate!r}, allowed is a positive integer")
    return replace(RULES[framework], accumulate=accumulate)
