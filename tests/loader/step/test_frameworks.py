"""What each framework does to a loss, done here as its source does it, gives one batch's gradient.

A framework is a function from (what a training step hands over, its settings) to the loss that is
backpropagated; gradients are then summed or averaged over ranks.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from counterpoise.loader.step.info import StepInfo
from counterpoise.loader.step.loss import FRAMEWORKS, Framework, loss_rule
from tests.loader.step.test_loss import gradients, infos_of, make_model, make_sample, sum_losses

# Ranks of microbatches of samples (length, labelled tokens), as unequal as can be.
STEP = [[[(6, 6), (5, 1)], [(2, 1)], [(4, 4)]], [[(7, 2)], [(3, 3), (7, 7), (6, 5)], [(1, 0)]]]
MICROBATCHES = len(STEP[0])
# What happens to a loss before its backward pass (sources: loader/step/loss.py).
BACKWARD: dict[Framework, Callable[[Tensor], Tensor]] = {
    "ddp": lambda loss: loss, "fsdp": lambda loss: loss, "sum": lambda loss: loss,
    "accelerate": lambda loss: loss / MICROBATCHES, "lightning": lambda loss: loss / MICROBATCHES,
    "fabric": lambda loss: loss, "trainer-divides": lambda loss: loss / MICROBATCHES,
}  # fmt: skip
NORMALIZING = {"trainer", "torchtitan"}


def reference() -> list[Tensor]:
    """Return the gradient of the mean over all label tokens, of one process."""
    model = make_model()
    samples = [sample for rank in made_step() for group in rank for sample in group]
    labelled = sum(int((labels != -100).sum()) for _, labels in samples)
    (sum_losses(model, samples, "token") / labelled).backward()
    return gradients(model)


def made_step() -> list[list[list[tuple[Tensor, Tensor]]]]:
    generator = torch.Generator().manual_seed(1)
    return [[[make_sample(generator, *s) for s in group] for group in rank] for rank in STEP]


def trained(hand_over: Callable[[Tensor, StepInfo], Tensor], reduction: str) -> list[Tensor]:
    """Return the gradient after each rank has backpropagated its microbatches."""
    step = made_step()
    ranks = []
    for rank, infos in zip(step, infos_of(step), strict=True):
        model = make_model()
        for group, info in zip(rank, infos, strict=True):
            hand_over(sum_losses(model, group, "token"), info).backward()
        ranks.append(gradients(model))
    divisor = len(step) if reduction == "mean" else 1
    return [torch.stack(each).sum(0) / divisor for each in zip(*ranks, strict=True)]


def distance(found: list[Tensor]) -> float:
    pairs = zip(found, reference(), strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def test_every_framework_has_a_rule_and_its_arithmetic_here() -> None:
    assert set(FRAMEWORKS) == set(BACKWARD) | NORMALIZING
    assert {name for name in FRAMEWORKS if loss_rule(name).normalizes} == NORMALIZING


@pytest.mark.parametrize("framework", BACKWARD)
def test_what_the_rule_hands_over_becomes_the_gradient_of_one_batch(framework: Framework) -> None:
    rule, backward = loss_rule(framework, accumulate=MICROBATCHES), BACKWARD[framework]
    found = trained(lambda loss, info: backward(rule.scale(loss, info)), rule.reduction)
    assert distance(found) < 1e-5
    # the mean of each microbatch, as people write it, is another gradient
    means = trained(lambda loss, i: backward(loss / max(i.label_tokens, 1)), rule.reduction)
    assert distance(means) > 0.1


def test_without_the_rule_an_accumulating_framework_divides_once_too_often() -> None:
    plain = loss_rule("ddp")
    found = trained(lambda loss, info: plain.scale(loss, info) / MICROBATCHES, "mean")
    for ours, theirs in zip(found, reference(), strict=True):
        torch.testing.assert_close(ours * MICROBATCHES, theirs)


def test_frameworks_that_count_tokens_are_right_with_sums_and_refuse_to_be_scaled() -> None:
    # transformers: model's sum / num_items_in_batch, times the processes; DDP averages
    trainer = trained(lambda loss, i: loss / i.step_label_tokens * i.ranks, "mean")
    # torchtitan: sum / global_valid_tokens; FSDP's division is turned off
    reduction = loss_rule("torchtitan").reduction
    torchtitan = trained(lambda loss, i: loss / i.step_label_tokens, reduction)
    assert max(distance(trainer), distance(torchtitan)) < 1e-5
    info = infos_of(made_step())[0][0]
    for framework in ("trainer", "torchtitan"):
        with pytest.raises(ValueError, match="leave scale_loss"):
            loss_rule(framework).scale(torch.tensor(1.0), info)


def test_what_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="framework is 'keras', allowed are 'ddp', 'fsdp', 'sum'"):
        loss_rule("keras")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="accumulate is 0, allowed is a positive integer"):
        loss_rule("ddp", accumulate=0)
