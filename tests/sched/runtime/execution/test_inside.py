"""Encoder passes inside passes of the language model, at points that its modules offer."""

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from counterpoise.sched import EncoderTimes, Program, check, schedule, unit_costs, with_encoders
from counterpoise.sched.runtime import offer
from counterpoise.sched.runtime.execution import walk as inside
from tests.sched.runtime.encoders.models import (
    Model,
    inner_kernels,
    make_model,
    make_samples,
    offer_points,
    reference,
    run_program,
)
from tests.sched.runtime.models import worst_error


def program_of(name: str, width: int = 1, layers: int = 4, points: int = 2) -> Program:
    """Return a schedule in whose waits pieces of the encoder are planned."""
    base = schedule(name, ranks=4, microbatches=8)
    times, costs = EncoderTimes((2,) * layers, (4,) * layers), unit_costs(20, 40, 20)
    given = inner_kernels(points)
    found = with_encoders(base, costs, [times], width=width, inside=given)
    check(found)
    return found


def watch(layers: list[nn.Module], seen: list[str]) -> None:
    """Note of each call whether it is inside of another pass."""

    def note(direction: str, *_: object) -> None:
        # While a point is used, its pass is not the one on top.
        seen.append(direction if POINTS[0] else "between")

    for layer in layers:
        layer.register_forward_hook(partial(note, "forward"))
        layer.register_full_backward_hook(partial(note, "backward"))


POINTS = [0]


@pytest.fixture(autouse=True)
def counted(monkeypatch) -> None:
    """Count the points that are used at the moment."""

    @contextmanager
    def counted_hooks(*given: Any) -> Iterator[None]:
        POINTS[0] += 1
        try:
            with saved_tensors_hooks(*given):
                yield
        finally:
            POINTS[0] -= 1

    monkeypatch.setattr(inside, "saved_tensors_hooks", counted_hooks)


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("name", ["1f1b", "zbv"])
def test_gradients_are_those_of_one_process(name, width, recompute) -> None:
    program = program_of(name, width)
    model = make_model([4], program.stages)
    expected, samples = copy.deepcopy(model), make_samples(program.microbatches)
    wanted = reference(expected, samples)
    copies = [copy.deepcopy(model.encoders) for _ in range(4 // width)]
    seen: list[str] = []
    for (layers,) in copies:
        watch(layers, seen)
    offer_points(model.stages)
    models = [Model(encoders, model.stages) for encoders in copies]
    choose = random.Random(0).choice
    found = run_program(program, models, samples, choose, width, recompute=recompute)
    assert found == pytest.approx(wanted, 1e-12)
    # ZB-V's plan has no backward there
    assert ({"forward", "backward"} if name == "1f1b" else {"forward"}) <= {*seen}
    assert worst_error(model.stages, expected.stages) < 1e-10
    (theirs,) = expected.encoders
    every = (nn.ModuleList(layers).parameters() for (layers,) in copies)
    for parameter, *parts in zip(nn.ModuleList(theirs).parameters(), *every, strict=True):
        summed = sum(part.grad for part in parts if part.grad is not None)
        assert parameter.grad is not None
        assert torch.allclose(torch.as_tensor(summed), parameter.grad, atol=1e-12)


def test_as_many_passes_run_as_fit_and_one_where_that_is_not_known() -> None:
    times, lefts = [10, 10, 10, 50], list[int | None]()

    def run(left: int | None) -> int | None:
        lefts.append(left)
        if left is not None and 2 * left < times[0]:
            return None
        return times.pop(0)

    with inside.points(run):
        offer(None)
        assert times == [10, 10, 50]
        offer(19)
        assert times == [50]
        offer(24)
        assert times == [50]
    assert lefts == [None, 19, 9, -1, 24]


def test_a_checkpoint_keeps_nothing_of_the_passes_inside_of_it() -> None:
    layer, other = nn.Linear(2, 2), nn.Linear(2, 2)
    losses: list[torch.Tensor] = []

    def run(_: int | None) -> int | None:
        with torch.enable_grad():
            losses.append(torch.tanh(other(torch.ones(1, 2))).sum())
        return 1

    def forward(x: torch.Tensor) -> torch.Tensor:
        offer()
        return torch.tanh(layer(x))

    with inside.points(run):
        found = checkpoint(forward, torch.ones(1, 2, requires_grad=True), use_reentrant=False)
    losses[0].backward()
    found.sum().backward()
    assert other.weight.grad is not None
    assert layer.weight.grad is not None
    assert len(losses) == 1


def test_points_outside_of_passes_do_nothing() -> None:
    offer()
