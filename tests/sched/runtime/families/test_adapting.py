"""What adapt() says of models, and what its check finds: planted faults in adapted models."""

import copy
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from counterpoise.loader import hf_kwargs
from counterpoise.sched import schedule
from counterpoise.sched.planners.stage_split import make_split
from counterpoise.sched.runtime import (
    Adapted,
    DecoderFamily,
    ImageFamily,
    Pipeline,
    adapt,
    families,
)
from counterpoise.sched.runtime.families import adapted as adapted_module
from counterpoise.sched.runtime.families.images import ImageEncoder
from counterpoise.sched.runtime.families.layers import Layers
from tests.sched.runtime.families.models import IMAGES, TEXT, make, microbatch

PLAN = make_split((1, 3))
FAULTY = ("gemma3_text", "granite", "gpt2", "qwen2_moe", "qwen2_5_vl")


def test_the_families_are_those_of_the_tests() -> None:
    assert set(families()) == {*TEXT, *IMAGES}
    assert {kind for kind, one in families().items() if isinstance(one, ImageFamily)} == {*IMAGES}


def plant_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Layers.cut
    monkeypatch.setattr(Layers, "cut", lambda self, sizes, scale=1.0: cut(self, sizes, scale / 2))


def plant_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Layers.end
    monkeypatch.setattr(Layers, "end", lambda self, norm, x, more: norm(end(self, norm, x, more)))


def plant_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = Layers._mask
    unlike = lambda self, kind, made: mask(self, kind, replace(made, text=None))  # noqa: E731
    monkeypatch.setattr(Layers, "_mask", unlike)


def plant_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = Layers.prepare

    def shifted(self: Layers, x: Any, extras: Any) -> Any:
        ((key, made),) = prepare(self, x, extras).items()
        return {key: replace(made, axes=made.axes.roll(1, -1))}

    monkeypatch.setattr(Layers, "prepare", shifted)
    unlike = lambda wpe, x, more: x + wpe(more["position_ids"].roll(1, -1))  # noqa: E731
    monkeypatch.setattr(adapted_module, "_add_positions", unlike)


def plant_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Adapted._calls

    def untied(self: Adapted, layers: Layers, *, head: bool) -> Any:
        found = calls(self, layers, head=head)
        own = found[self.head]
        found[self.head] = lambda module, x, more: own(
            copy.deepcopy(module).requires_grad_(False), x, more
        )
        return found

    monkeypatch.setattr(Adapted, "_calls", untied)


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "a scale dropped": (plant_scale, r"layers.0 is called|h.0 is called"),
    "a norm twice": (plant_norm, r"of lm_head, and of the stages of .*(norm|ln_f)"),
    "a mask forgotten": (plant_mask, "layers.0 makes something|h.0 makes something"),
    "positions shifted": (plant_positions, "layers.0 makes something|transformer.wpe is called"),
    "a tie cut": (plant_tie, "gradient of .*(embed_tokens|wte).weight differs"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", FAULTY)
def test_planted_faults_are_found_in_adapted_models(monkeypatch, kind: str, fault: str) -> None:
    found = adapt(make(kind))
    assert len(found.split(PLAN)) == 2
    plant, named = FAULTS[fault]
    plant(monkeypatch)
    with pytest.raises(ValueError, match=named):
        found.split(PLAN)


@pytest.mark.parametrize("kind", ["gemma3_text", "granite", "cohere"])
def test_a_scale_that_vocabulary_passes_leave_to_the_stages_is_compared(monkeypatch, kind) -> None:
    found = adapt(make(kind))
    assert len(found.split(PLAN, words=False, head=False)) == 2
    every: list[dict[str, Any]] = [{"inside": found.inside * 2}, {"logits": 2.0}, {"softcap": 1.0}]
    for wrong in every:
        with pytest.raises(ValueError, match=r"is called with other|changes what"):
            replace(found, **wrong).split(PLAN, words=False, head=False)


@pytest.mark.parametrize("kind", IMAGES)
def test_a_microbatch_with_images_is_compared_too(monkeypatch, kind: str) -> None:
    model = make(kind)
    batch = microbatch(kind, model, (4, 3), (1, 2), 0)
    fields = {"input_ids": batch["input_ids"], **hf_kwargs(batch, model)}
    found = adapt(model)
    assert len(found.split(PLAN, check=fields)) == 2
    plain = found.images.merge
    twice = property(lambda _: lambda words, *more: 2 * plain(words, *more))
    monkeypatch.setattr(ImageEncoder, "merge", twice)
    with pytest.raises(ValueError, match=r"layers.0 is called with other values"):
        found.split(PLAN, check=fields)


def test_features_of_several_layers_are_compared(monkeypatch) -> None:
    model = make("qwen3_vl")
    batch = microbatch("qwen3_vl", model, (4, 3), (1, 2), 0)
    fields = {"input_ids": batch["input_ids"], **hf_kwargs(batch, model)}
    found = adapt(model)
    assert len(found.split(make_split((1, 1, 2)), check=fields)) == 3
    monkeypatch.setattr(Layers, "_stack", lambda *given: given[2:])
    with pytest.raises(ValueError, match=r"layers.1 is called with other values"):
        found.split(make_split((1, 1, 2)), check=fields)


def test_the_names_of_stages_are_those_of_the_whole_model() -> None:
    with torch.device("meta"):
        model = make("llama", tied=False)
    found = adapt(model)
    stages, names = found.split(PLAN), found.modules(PLAN)
    assert names[0] == ["model.embed_tokens", "model.layers.0"]
    assert names[1][-2:] == ["model.norm", "lm_head"]
    whole = set(model.state_dict())
    assert {name for stage in stages for name in stage.state_dict()} == whole
    for stage, own in zip(stages, names, strict=True):
        begun = {name for name in whole if name.startswith(tuple(f"{each}." for each in own))}
        assert set(stage.state_dict()) == begun
    assert found.modules(PLAN, words=False, head=False)[0] == ["model.layers.0"]


def test_what_stages_call_does_not_hold_the_other_stages() -> None:
    for kind in ("gemma2", "gpt2", "qwen3_vl"):
        found = adapt(make(kind))
        last = weakref.ref(found.model.get_submodule(f"{found.list_name}.3"))
        stage, hidden = found.split(PLAN)[0], found.hidden(PLAN)
        del found
        gc.collect()
        assert last() is None, kind
        assert stage, hidden


def test_a_model_without_a_description_says_what_to_write() -> None:
    model = make("llama")
    model.config.model_type = "own"
    with pytest.raises(ValueError, match=r"no description of Llama.*DecoderFamily\(base='model'"):
        adapt(model)
    assert len(adapt(model, DecoderFamily()).split(PLAN)) == 2
    with pytest.raises(ValueError, match=r"positions='model.wpe', and Llama\w+ has no such"):
        adapt(model, DecoderFamily(positions="wpe"))
    model.config.layer_types = ["linear_attention"] * 4
    with pytest.raises(ValueError, match="layer_types has linear_attention"):
        adapt(model, DecoderFamily())
    with pytest.raises(ValueError, match=r"no description of Sequential.*layers="):
        adapt(nn.Sequential(nn.Linear(2, 2)))


class OwnModel(nn.Module):
    """A model of a user's own, with a scale and no rotary embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(model_type="own", hidden_size=8, layer_types=None)
        self.words, self.norm = nn.Embedding(32, 8), nn.LayerNorm(8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.out = nn.Linear(8, 32, bias=False)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids) * 3
        for block in self.blocks:
            x = block(x, position_ids=position_ids)
        logits: torch.Tensor = self.out(self.norm(x))
        return logits


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        found: torch.Tensor = x + self.linear(x) * position_ids[..., None]
        return found


def test_a_model_of_ones_own_is_described_as_the_families_are(monkeypatch) -> None:
    monkeypatch.setattr(Layers, "_mask", lambda *_: None)  # it has no attention
    own = DecoderFamily(
        base="", words="words", layers="blocks", head="out", rotary="", scale_words=lambda _: 3.0
    )
    assert len(adapt(OwnModel(), own).split(make_split((1, 1)))) == 2
    with pytest.raises(ValueError, match=r"blocks.0 is called with other values"):
        adapt(OwnModel(), replace(own, scale_words=lambda _: 2.0)).split(make_split((1, 1)))


def test_a_schedule_without_the_encoder_is_refused_and_text_alone_is_not(monkeypatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(Pipeline, "__init__", lambda *_, **more: given.update(more))
    one = SimpleNamespace(size=lambda: 2, get_local_rank=lambda: 0)
    mesh: Any = {"pp": one}

    def plain(ranks: int, microbatches: int) -> Any:
        return schedule("1f1b", ranks=ranks, microbatches=microbatches)

    found, info = adapt(make("qwen3_vl")), SimpleNamespace(costs={"tokens": 7})
    with pytest.raises(ValueError, match="no passes of it; fill it"):
        found.pipeline(mesh, plain)
    found.pipeline(mesh, plain, plan=PLAN, images=False)
    assert given["encoders"] == []
    assert given["hidden"].find_shape(info) == (1, 7, 16)
    found.pipeline(mesh, "1f1b", images={"trainable": False})
    (spec,) = given["encoders"]
    assert not any(p.requires_grad for p in spec.modules[0].parameters())
    assert {*spec.layer_names} == {"model.visual"}
    # the second layer's features travel to its stage
    found.pipeline(mesh, "1f1b", plan=PLAN)
    assert given["hidden"].find_shape(info) == (1, 14, 16)
