"""Gradients that are there before a step are added to, or left alone where it raises."""

import pytest
import torch
from torch import nn

from counterpoise.sched.runtime.gradients import EarlierGradients


def parameters() -> tuple[nn.Parameter, nn.Parameter, torch.Tensor]:
    """Return one with a gradient, one without, and the gradient."""
    old, new = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    old.grad = torch.tensor([1.0, 2.0])
    return old, new, old.grad


def test_a_steps_gradients_are_added_in_the_memory_of_the_earlier() -> None:
    old, new, before = parameters()
    with EarlierGradients((old, new)):
        assert old.grad is None
        old.grad = new.grad = torch.ones(2)
    assert old.grad is before
    assert before.tolist() == [2.0, 3.0]
    assert new.grad is not None
    assert new.grad.tolist() == [1.0, 1.0]


def test_a_parameter_without_part_in_the_step_keeps_its_gradient() -> None:
    old, new, before = parameters()
    with EarlierGradients((old, new)):
        pass
    assert old.grad is before
    assert new.grad is None


def test_a_step_that_raises_leaves_them_as_they_were() -> None:
    old, new, before = parameters()

    def step() -> None:
        with EarlierGradients((old, new)):
            old.grad = new.grad = torch.ones(2)
            raise RuntimeError("stalled")

    with pytest.raises(RuntimeError, match="stalled"):
        step()
    assert old.grad is before
    assert before.tolist() == [1.0, 2.0]
    assert new.grad is None


def test_a_parameter_that_two_stages_share_is_added_to_once() -> None:
    old, _, before = parameters()
    with EarlierGradients((old, old)):
        old.grad = torch.ones(2)
    assert before.tolist() == [2.0, 3.0]
