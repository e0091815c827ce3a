"""Towers layer by layer, beside transformers' own forward of the whole tower."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from counterpoise.sched.runtime import adapt
from tests.sched.runtime.cases import relative
from tests.sched.runtime.families.models import make

TOWERS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
# Images of different sizes, one of them several windows wide and one of two frames.
GRIDS = ([1, 4, 4], [1, 2, 8], [2, 6, 12], [1, 2, 2])
TOLERANCE = 1e-5


def images_of(model: Any) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(1)
    grids = torch.tensor(GRIDS)
    return torch.randn(int(grids.prod(-1).sum()), 12, generator=chance), grids


def run(layers: list[nn.Module], constants: dict[str, Any], x: Tensor) -> Tensor:
    made: Any = (x,)
    for layer in layers:
        made = layer(*made, **constants)
        made = made if isinstance(made, tuple) else (made,)
    (found,) = made
    return found


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("kind", TOWERS)
def test_layers_and_pieces_are_the_tower(kind: str, pieces: int) -> None:
    model = make(kind)
    expected = copy.deepcopy(model)
    images = adapt(model).images
    assert images is not None
    spec = images.spec(torch.float32, pieces=pieces)
    assert len(spec.modules) == pieces * model.config.vision_config.depth
    pixels, grids = images_of(model)
    assert spec.prepare is not None
    found = run([m for _, m in spec.layers()], {**spec.prepare(image_grid_thw=grids)}, pixels)
    wanted = images.family.features(expected.model, pixels, grids)
    assert relative(found.detach(), wanted.detach()) <= TOLERANCE
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(2))
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    # under the names that the model has
    ours = {
        f"{spec.layer_name(n)}.{name}": parameter
        for n, module in spec.layers()
        for name, parameter in module.named_parameters()
    }
    theirs = {n: p for n, p in expected.named_parameters() if n.startswith("model.visual.")}
    assert ours.keys() == theirs.keys()
    scale = max(float(p.grad.abs().max()) for p in theirs.values() if p.grad is not None)
    for name, parameter in theirs.items():
        assert parameter.grad is not None
        assert ours[name].grad is not None
        off = float((ours[name].grad - parameter.grad).abs().max())
        assert off <= TOLERANCE * max(float(parameter.grad.abs().max()), 1e-2 * scale), name
