"""The gradient of unequal microbatches on several ranks is that of one big batch."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional

from counterpoise.loader.step.info import Step, StepInfo
from counterpoise.loader.step.loss import Reduction, Weighting, scale_loss

INFO = StepInfo(
    epoch=0, step=3, microbatch=0, microbatches=1, rank=0, ranks=4, samples=2, label_tokens=5,
    rank_samples=2, rank_label_tokens=5, step_samples=8, step_label_tokens=20,
)  # fmt: skip
Samples = list[tuple[Tensor, Tensor]]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))


def make_sample(generator: torch.Generator, length: int, labelled: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, 11, (length,), generator=generator)
    labels = torch.full((length,), -100)
    labels[:labelled] = torch.randint(0, 11, (labelled,), generator=generator)
    return tokens, labels


def sum_losses(model: nn.Module, samples: Samples, per: Weighting) -> Tensor:
    total = model(torch.zeros(1, dtype=torch.long)).sum() * 0
    for tokens, labels in samples:
        loss = functional.cross_entropy(model(tokens), labels, reduction="sum")
        count = int((labels != -100).sum())
        total = total + (loss if per == "token" else loss / max(count, 1))
    return total


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def count(samples: Samples) -> tuple[int, int]:
    return len(samples), sum(int((labels != -100).sum()) for _, labels in samples)


def infos_of(step: list[list[Samples]]) -> list[list[StepInfo]]:
    """The infos of a step given as ranks of microbatches of samples."""
    everything = count([s for rank in step for group in rank for s in group])
    return [
        [
            dataclasses.replace(
                INFO, rank=r, ranks=len(step), microbatch=m, microbatches=len(rank),
                samples=count(group)[0], label_tokens=count(group)[1], step_samples=everything[0],
                step_label_tokens=everything[1],
            )
            for m, group in enumerate(rank)
        ]
        for r, rank in enumerate(step)
    ]  # fmt: skip


lengths = st.tuples(st.integers(1, 7), st.integers(0, 7)).map(lambda t: (t[0], min(t)))
groups = st.lists(lengths, max_size=4)
# Ranks of equally many microbatches of samples, each (length, labelled tokens).
shapes = st.integers(1, 3).flatmap(
    lambda n: st.lists(st.lists(groups, min_size=n, max_size=n), min_size=1, max_size=4)
)


@pytest.mark.parametrize("per", ["token", "sample"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@settings(max_examples=30)
@given(shape=shapes)
def test_unequal_microbatches_over_ranks_equal_one_big_batch(
    per: Weighting, reduction: Reduction, shape: list[list[list[tuple[int, int]]]]
) -> None:
    generator = torch.Generator().manual_seed(1)
    step = [
        [[make_sample(generator, *sizes) for sizes in group] for group in rank] for rank in shape
    ]
    everything = [sample for rank in step for group in rank for sample in group]
    samples, label_tokens = count(everything)
    denominator = label_tokens if per == "token" else samples
    if not denominator:
        return

    reference = make_model()
    (sum_losses(reference, everything, per) / denominator).backward()

    ranks = []
    for groups_of_rank, infos in zip(step, infos_of(step), strict=True):
        model = make_model()
        for group, info in zip(groups_of_rank, infos, strict=True):
            scale_loss(sum_losses(model, group, per), info, per, reduction).backward()
        ranks.append(gradients(model))
    divisor = len(step) if reduction == "mean" else 1
    combined = [torch.stack(each).sum(0) / divisor for each in zip(*ranks, strict=True)]
    for ours, theirs in zip(combined, gradients(reference), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_share_is_the_count_over_the_steps_count_times_the_ranks() -> None:
    assert scale_loss(torch.tensor(10.0), INFO).item() == pytest.approx(10 * 4 / 20)
    assert scale_loss(torch.tensor(10.0), INFO, "sample").item() == pytest.approx(10 * 4 / 8)
    assert scale_loss(torch.tensor(10.0), INFO, reduction="sum").item() == pytest.approx(10 / 20)


def test_what_a_framework_divides_by_is_undone() -> None:
    share = scale_loss(torch.tensor(10.0), INFO)
    assert (scale_loss(torch.tensor(10.0), INFO, divided_by=4) / 4).item() == share.item()
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="allowed is a positive number"):
            scale_loss(torch.tensor(10.0), INFO, divided_by=wrong)


def test_an_empty_microbatch_gives_exactly_zero_with_a_graph() -> None:
    empty = dataclasses.replace(INFO, samples=0, label_tokens=0)
    weight = torch.ones(3, requires_grad=True)
    loss = scale_loss((weight * 1e30).sum(), empty)
    loss.backward()
    assert loss.item() == 0.0
    assert weight.grad is not None
    assert weight.grad.tolist() == [0.0, 0.0, 0.0]


def test_the_mean_of_an_empty_microbatch_is_refused() -> None:
    empty = dataclasses.replace(INFO, samples=0, label_tokens=0)
    with pytest.raises(ValueError, match="pass a sum of losses"):
        scale_loss(torch.tensor(float("nan")), empty)


def test_a_step_without_label_tokens_has_no_token_mean() -> None:
    silent = dataclasses.replace(INFO, label_tokens=0, step_label_tokens=0)
    with pytest.raises(ValueError, match="step 3 has no tokens to average over"):
        scale_loss(torch.tensor(0.0), silent)
    assert scale_loss(torch.tensor(0.0), silent, "sample").item() == 0.0


@pytest.mark.parametrize("words", [("pixel", "mean"), ("token", "max")])
def test_unknown_words_are_refused_with_those_allowed(words: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="allowed are"):
        scale_loss(torch.tensor(0.0), INFO, *words)


def test_a_step_has_an_info_for_each_microbatch() -> None:
    assert Step(3, ("batch",), (INFO,)).infos[0].last
    with pytest.raises(ValueError, match="give one StepInfo for each microbatch"):
        Step(3, ("batch",), ())
