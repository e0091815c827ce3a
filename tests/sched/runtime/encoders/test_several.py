"""Layers that hand on several tensors, and get what is constant for a microbatch, in pieces too."""

import copy
import random
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from counterpoise.sched import check
from counterpoise.sched.runtime.encoders.placement import EncoderSpec
from tests.sched.runtime.encoders.models import (
    ENCODED,
    INPUTS,
    Model,
    Sample,
    encoded,
    make_model,
    make_samples,
    run_program,
    specs_of,
)
from tests.sched.runtime.models import HIDDEN, total_loss, worst_error

SIDE = 3


class Piece(nn.Module):
    """Half of a layer of two pieces: the first one hands on what the second one adds."""

    def __init__(self, whole: "Layer", first: bool) -> None:
        super().__init__()
        self.add_module("up" if first else "down", whole.up if first else whole.down)
        self.first = first

    def forward(self, x: Tensor, *side: Tensor, scale: Tensor) -> tuple[Tensor, ...] | Tensor:
        if self.first:
            return (x, torch.tanh(self.get_submodule("up")(x)) * scale, *side)
        between, *rest = side
        down = self.get_submodule("down")
        assert isinstance(down, Down)
        found: tuple[Tensor, ...] | Tensor = down(x, between, *rest)
        return found


class Down(nn.Module):
    """The end of a layer, with or without a tensor beside the hidden states."""

    def __init__(self, width: int, out: int, last: bool) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(width, out), last
        self.beside = nn.Linear(out, SIDE)
        self.back = nn.Linear(SIDE, out)

    def forward(self, x: Tensor, between: Tensor, *side: Tensor) -> tuple[Tensor, ...] | Tensor:
        y = self.linear(x + between)
        old = side[0] if side else y.new_zeros(len(y), SIDE)
        new = old + torch.tanh(self.beside(y))
        return y + self.back(new) if self.last else (y, new)


class Layer(nn.Module):
    """A layer that takes and returns a tensor beside the hidden states."""

    def __init__(self, width: int, out: int, last: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), Down(width, out, last)

    def pieces(self) -> list[nn.Module]:
        return [Piece(self, True), Piece(self, False)]

    def forward(self, x: Tensor, *side: Tensor, scale: Tensor) -> tuple[Tensor, ...] | Tensor:
        found: tuple[Tensor, ...] | Tensor = self.down(x, torch.tanh(self.up(x)) * scale, *side)
        return found


def make(count: int, stages: int) -> Model:
    made = make_model([], stages)
    widths = [INPUTS, *[ENCODED] * (count - 1), HIDDEN]
    pairs = pairwise(widths)
    layers = [Layer(a, b, number == count - 1) for number, (a, b) in enumerate(pairs)]
    return Model([[layer.double() for layer in layers]], made.stages)


def scales(labels: Tensor) -> dict[str, Tensor]:
    """Return what is constant for a microbatch, and another in each."""
    return {"scale": 1 + labels[:1].double() / 7}


def described(
    model: Model, dtype: torch.dtype, pieces: int = 1, hidden: Any = None
) -> list[EncoderSpec]:
    (plain,) = specs_of(replace(model, encoders=[[nn.Identity()]]), dtype)
    handed = hidden or (lambda i: [(i.costs["tiles"], ENCODED), (i.costs["tiles"], SIDE)])
    return [
        replace(
            plain, modules=model.encoders[0], extras=("labels",), prepare=scales, pieces=pieces,
            hidden=handed,
        )
    ]  # fmt: skip


def features_of(layers: list[nn.Module], sample: Sample) -> Tensor:
    made: tuple[Tensor, ...] | Tensor = (sample.pixels,)
    if not len(sample.pixels):
        return sample.pixels.new_zeros(0, HIDDEN)
    for layer in layers:
        made = layer(*made, **scales(sample.labels))
    assert isinstance(made, Tensor)
    return made


def reference(model: Model, samples: list[Sample]) -> float:
    """Leave the gradients of one process on the model, and return the loss."""
    found, weight = 0.0, 1 / sum(len(sample.ids) for sample in samples)
    for sample in samples:
        named = features_of(model.encoders[0], sample)
        x = model.stages[0](sample.ids, named)
        loss = total_loss(nn.Sequential(*model.stages[1:])(x), sample.labels) * weight
        loss.backward()
        found += loss.item()
    return found


@pytest.mark.parametrize("frozen", [(), (0,), (0, 1)])
@pytest.mark.parametrize(
    ("width", "layers", "pieces"), [(1, 2, 1), (2, 2, 1), (2, 4, 2), (4, 4, 2)]
)
def test_gradients_are_those_of_one_process(width, layers, pieces, frozen) -> None:
    program = encoded("1f1b", 4, 8, width=width, layers=(layers * pieces // width,))
    check(program)
    model = make(layers, program.stages)
    for number in frozen:
        model.encoders[0][number].requires_grad_(False)
    expected = copy.deepcopy(model)
    samples = make_samples(program.microbatches)
    wanted = reference(expected, samples)
    copies = [copy.deepcopy(model.encoders) for _ in range(4 // width)]
    models = [Model(encoders, model.stages) for encoders in copies]
    describe = partial(described, pieces=pieces)
    found = run_program(program, models, samples, random.Random(0).choice, width, describe)
    assert found == pytest.approx(wanted, 1e-12)
    assert worst_error(model.stages, expected.stages) < 1e-10
    for parameter, *parts in zip(
        *(nn.ModuleList(one).parameters() for (one,) in (expected.encoders, *copies)), strict=True
    ):
        grads = [part.grad for part in parts if part.grad is not None]
        if not grads:
            assert parameter.grad is None
            continue
        assert parameter.grad is not None
        assert torch.allclose(sum(grads[1:], grads[0]), parameter.grad, atol=1e-12)


def run_once(width: int, **given: Any) -> None:
    program = encoded("1f1b", 2, 2, width=width, layers=(2 // width,))
    models = [make(2, 2) for _ in range(2 // width)]
    describe = partial(described, **given)
    run_program(program, models, make_samples(2), random.Random(0).choice, width, describe)


def test_another_number_of_tensors_than_planned_is_refused() -> None:
    planned = r"made \(\d, 6\) and \(\d, 3\), the plan says \(\d, 6\)"
    with pytest.raises(ValueError, match=planned):
        run_once(2, hidden=lambda info: (info.costs["tiles"], ENCODED))


@pytest.mark.parametrize(
    ("made", "error"),
    [
        ((torch.ones(2, HIDDEN),) * 2, "returned 2 tensors; return one"),
        (torch.ones(2, HIDDEN, dtype=torch.int32), "made by prepare= of EncoderSpec"),
        ([torch.ones(2, HIDDEN)], "returned a list"),
    ],
)
def test_what_is_no_result_of_a_layer_is_refused(monkeypatch, made, error) -> None:
    down = Down.forward
    monkeypatch.setattr(
        Down, "forward", lambda self, *given: made if self.last else down(self, *given)
    )
    with pytest.raises(TypeError, match=error):
        run_once(1)


def test_layers_without_the_pieces_asked_for_are_refused() -> None:
    with pytest.raises(ValueError, match="a Linear, has no pieces, and not 2"):
        EncoderSpec("a", [nn.Linear(2, 2)], {"tiles": 1}, 2, pieces=2)
    with pytest.raises(ValueError, match="has 2 pieces, and not 3"):
        EncoderSpec("a", [Layer(2, 2, True)], {"tiles": 1}, 2, pieces=3)
    with pytest.raises(ValueError, match="1 layers and 2 layer_names"):
        EncoderSpec("a", [nn.Linear(2, 2)], {"tiles": 1}, 2, layer_names=("a", "b"))
    spec = EncoderSpec("a", [None, Layer(2, 2, True)], {"tiles": 1}, 2, pieces=2)
    assert spec.modules[:2] == [None, None]
    assert [spec.layer_name(n) for n, _ in spec.layers()] == ["encoders.a.1"] * 2
