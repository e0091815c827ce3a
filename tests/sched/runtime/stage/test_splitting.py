"""Stages that a plan cuts out of a model: the same weights and gradients, the bytes foretold."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from counterpoise.sched.planners.job.schema import read_stages
from counterpoise.sched.planners.recompute import Stage, Trial, plan_recompute, savings
from counterpoise.sched.planners.stage_split import SplitPlan, dump_split, make_split
from counterpoise.sched.runtime import split
from tests.sched.saved_tensors import saved_bytes

WIDTH, TOKENS, WORDS = 16, 24, 11


class Layer(nn.Module):
    """A residual layer that returns its state as other frameworks' layers do, in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.calls = 0

    def forward(self, x: Tensor, scale: Tensor) -> tuple[Tensor, None]:
        self.calls += 1
        return x + self.down(torch.tanh(self.up(self.norm(x)))) * scale, None


class Model(nn.Module):
    """A language model whose layers are inside another module."""

    def __init__(self, layers: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.model.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.model.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor, scale: Tensor) -> Tensor:
        x = self.model.get_submodule("embed_tokens")(ids)
        for layer in self.model.get_submodule("layers").children():
            x, _ = layer(x, scale)
        found: Tensor = self.lm_head(self.model.get_submodule("norm")(x))
        return found


NAMES: dict[str, Any] = {
    "layers": "model.layers",
    "first": ("model.embed_tokens",),
    "last": ("model.norm", "lm_head"),
    "check": {"ids": torch.arange(TOKENS) % WORDS, "scale": torch.tensor(0.5)},
}


def run(stages: list[nn.Module], ids: Tensor, scale: Tensor) -> Tensor:
    x = ids
    for stage in stages:
        x = stage(x, scale=scale)
    return x


@pytest.mark.parametrize("sizes", [(5,), (2, 3), (1, 1, 2, 1)], ids=str)
def test_stages_compute_what_the_model_does(sizes: tuple[int, ...]) -> None:
    ids, scale = torch.arange(TOKENS) % WORDS, torch.tensor(0.5)
    model = Model()
    expected = copy.deepcopy(model)
    again = [range(0, size, 2) for size in sizes]
    stages = split(model, make_split(sizes, [tuple(one) for one in again]), **NAMES)
    assert len(stages) == len(sizes)
    for layer in model.model.get_submodule("layers").children():
        vars(layer)["calls"] = 0  # the check has called them, too
    names = [name for stage in stages for name in stage.state_dict()]
    assert sorted(names) == sorted(expected.state_dict())

    found, wanted = run(stages, ids, scale), expected(ids, scale)
    assert torch.equal(found, wanted)
    found.square().sum().backward()
    wanted.square().sum().backward()
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)
    calls = [layer.calls for layer in model.model.get_submodule("layers").children()]
    planned = [2 if at % 2 == 0 else 1 for size in sizes for at in range(size)]
    assert calls == planned


def test_a_stage_keeps_the_bytes_that_the_plan_foretells() -> None:
    sizes, live = (3, 2, 3), (3, 2, 1)
    model, scale = Model(8), torch.tensor(0.5)
    parameters = list(model.parameters())
    ids = [torch.arange(TOKENS) % WORDS for _ in range(3)]
    hidden = [torch.randn(TOKENS, WIDTH, requires_grad=True) for _ in range(3)]

    def used(at: int, recompute: tuple[int, ...]) -> int:
        again = [recompute if stage == at else () for stage in range(len(sizes))]
        stage = split(model, make_split(sizes, again), **NAMES)[at]
        inputs = (ids if at == 0 else hidden)[: live[at]]
        return saved_bytes(lambda: [stage(x, scale=scale) for x in inputs], parameters)

    kinds = [("layer",) * size for size in sizes]
    stages = [
        Stage(kinds[at], live[at], used(at, tuple(range(sizes[at])))) for at in range(len(sizes))
    ]
    saving = savings(stages, [Trial(0, {"layer": 1}, used(0, (1, 2)))], {})
    limit = stages[0].base_bytes + 4 * saving["layer"].saved_bytes
    policies = plan_recompute(stages, saving, limit)
    assert [len(one.recompute) for one in policies] == [2, 0, 0]
    for at, policy in enumerate(policies):
        assert used(at, policy.recompute) == pytest.approx(policy.predicted_bytes, rel=0.05)


def test_a_plan_comes_from_a_file_and_names_may_be_several(tmp_path: Path) -> None:
    chain = nn.ModuleDict(
        {
            "vision": nn.Sequential(nn.Linear(2, 3), nn.Tanh()),
            "text": nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)),
        }
    )
    path = tmp_path / "split.json"
    path.write_text(json.dumps(dump_split(make_split((3, 1), [(1,), ()]))))
    stages = split(chain, path, layers=("vision", "text"))
    assert [list(stage.state_dict()) for stage in stages] == [
        ["vision.0.weight", "vision.0.bias", "text.0.weight", "text.0.bias"],
        ["text.1.weight", "text.1.bias"],
    ]
    x = torch.ones(4, 2)
    expected = chain["text"](chain["vision"](x))
    assert torch.equal(stages[1](stages[0](x)), expected)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the lists hold 5 layers, the plan 4"):
        split(Model(), make_split((2, 2)), **NAMES)
    with pytest.raises(ValueError, match="the model has no decoder"):
        split(Model(), make_split((5,)), layers="decoder")
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"stages": [{"stage": 0, "first_layer": 1, "layers": 2}]}))
    with pytest.raises(ValueError, match="begins with layer 1; stage 0 and layer 0 come next"):
        read_stages(path)
    with pytest.raises(ValueError, match="has 2 layers and recomputes"):
        make_split((2,), [(2,)])
    assert SplitPlan(make_split((2,)).stages).layers == 2
