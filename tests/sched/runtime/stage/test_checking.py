"""What split() compares with a model's own forward: planted faults in Hugging Face's models."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask

from counterpoise.sched.planners.stage_split import make_split
from counterpoise.sched.runtime import split
from tests.sched.runtime.families import models

FAMILIES = ("llama", "granite", "gpt2")
# What forward multiplies embeddings and logits with.
SCALES = {"granite": (12.0, 1 / 8), "cohere": (1.0, 0.0625)}


class Description(NamedTuple):
    """How a model is split: the names, how layers and single modules are called."""

    names: dict[str, Any]
    call: Callable[..., Any]
    calls: dict[str, Callable[..., Any]]

    @property
    def embedding(self) -> str:
        return str(self.names["first"][0])

    @property
    def norm(self) -> str:
        return str(self.names["last"][0])

    def given(self) -> dict[str, Any]:
        return {**self.names, "call": self.call, "calls": self.calls}


def describe(family: str, model: Any, *, masked: bool = True, shift: int = 0) -> Description:
    """Return what split() needs. `masked`: whether samples see nothing of others. `shift`: of
    positions."""

    def positions(extras: Mapping[str, Tensor]) -> Tensor:
        return extras["position_ids"].roll(shift, -1)

    def call(layer: nn.Module, x: Tensor, extras: Mapping[str, Tensor]) -> Any:
        mask = create_causal_mask(
            config=model.config,
            inputs_embeds=x,
            attention_mask=None,
            past_key_values=None,
            position_ids=extras["position_ids"] if masked else None,
        )
        if family == "gpt2":
            return layer(x, attention_mask=mask)
        rotary = model.model.rotary_emb(x, positions(extras))
        return layer(x, attention_mask=mask, position_embeddings=rotary)

    if family == "gpt2":
        names = {
            "layers": "transformer.h",
            "first": ("transformer.wte", "transformer.wpe"),
            "last": ("transformer.ln_f", "lm_head"),
        }
        added = {"transformer.wpe": lambda wpe, x, extras: x + wpe(positions(extras))}
        return Description(names, call, added)
    names = {
        "layers": "model.layers",
        "first": ("model.embed_tokens",),
        "last": ("model.norm", "lm_head"),
    }
    scale, logits = SCALES.get(family, (1.0, 1.0))
    scaled = {
        "model.embed_tokens": lambda words, x, _: words(x) * scale,
        "lm_head": lambda head, x, _: head(x) * logits,
    }
    return Description(names, call, scaled if family in SCALES else {})


def make(family: str, tied: bool = True) -> Any:
    """Return a tiny model of three layers."""
    more = {"n_layer": 3} if family == "gpt2" else {"num_hidden_layers": 3}
    return models.make(family, tied=tied, **more)


def half(module: nn.Module, x: Tensor, extras: Mapping[str, Tensor]) -> Any:
    return module(x) * 0.5


def twice(module: nn.Module, x: Tensor, extras: Mapping[str, Tensor]) -> Any:
    # A norm after a norm changes something if its weight does.
    return module(module(x))


def apart(head: Any, x: Tensor, extras: Mapping[str, Tensor]) -> Any:
    return head(x)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_stages_that_do_what_forward_does_pass(family: str, tied: bool) -> None:
    model = make(family, tied).train()
    given = describe(family, model).given()
    before = copy.deepcopy(model.state_dict())
    again = split(model, make_split((1, 2), [(0,), (1,)]), **given)
    assert len(again) == 2
    assert len(split(model, make_split((1, 1, 1)), **given)) == 3
    # nothing is left of it
    assert all(module.training for module in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def faults(family: str, model: Any) -> dict[str, tuple[Description, str]]:
    """Return a description with each planted fault, and the module that the error must name."""
    right = describe(family, model)
    own = right.calls.get("lm_head", apart)

    def untied(head: Any, x: Tensor, extras: Mapping[str, Tensor]) -> Any:
        kept = copy.deepcopy(head).requires_grad_(False)  # trained here no more
        return own(kept, x, extras)

    def with_calls(**calls: Callable[..., Any]) -> Description:
        changed = {name.replace("__", "."): how for name, how in calls.items()}
        return right._replace(calls={**right.calls, **changed})

    layer = f"{right.names['layers']}.0"
    words = right.embedding.replace(".", "__")
    return {
        "a scale dropped": (with_calls(**{words: half}), f"^{layer} is called"),
        "a norm twice": (
            with_calls(**{right.norm.replace(".", "__"): twice}),
            f"call 5 .* of lm_head, and of the stages of {right.norm}",
        ),
        "a mask forgotten": (describe(family, model, masked=False), f"^{layer} makes something"),
        "positions shifted": (
            describe(family, model, shift=1),
            "transformer.wpe is called" if family == "gpt2" else f"^{layer} makes something",
        ),
        "a tie cut": (with_calls(lm_head=untied), f"gradient of {right.embedding}.weight differs"),
    }


@pytest.mark.parametrize("fault", list(faults("llama", make("llama"))))
@pytest.mark.parametrize("family", FAMILIES)
def test_planted_faults_are_found_and_the_first_module_is_named(family: str, fault: str) -> None:
    model = make(family)
    wrong, named = faults(family, model)[fault]
    if fault == "a norm twice" and family == "gpt2":
        named = named.replace("call 5", "call 6")
    with pytest.raises(ValueError, match=named):
        split(model, make_split((1, 2)), **wrong.given())


@pytest.mark.parametrize(
    ("family", "named"),
    [
        ("granite", "does something between model.embed_tokens and it"),
        ("cohere", "forward changes what lm_head makes"),
        ("gpt2", "with transformer.wpe, which no stage has"),
    ],
)
def test_what_forward_does_between_modules_is_not_dropped_in_silence(family, named) -> None:
    model = make(family)
    plain = describe(family, model)
    names = {**plain.names, "first": plain.names["first"][:1]}
    with pytest.raises(ValueError, match=named):
        split(model, make_split((1, 2)), **names, call=plain.call)


def test_a_layer_that_needs_more_than_it_gets_is_named_with_what_forward_gives() -> None:
    model = make("llama")
    names = describe("llama", model).names
    with pytest.raises(ValueError, match=r"model.layers.0 fails .* gives it .*position_embeddings"):
        split(model, make_split((1, 2)), **names)


def test_vocabulary_passes_leave_embedding_and_head_out_together() -> None:
    model = make("llama")
    around = describe("llama", model).given() | {"first": ()}
    with pytest.raises(ValueError, match=r"embed_tokens.weight is tied to lm_head.weight"):
        split(model, make_split((3,)), **{**around, "first": ("model.embed_tokens",), "last": ()})
    around["last"] = ("model.norm",)
    assert len(split(model, make_split((1, 2)), **around)) == 2
    wrong = {**around, "calls": {"model.norm": half}}
    with pytest.raises(ValueError, match=r"changes what model\.norm makes"):
        split(model, make_split((1, 2)), **wrong)
    # Cohere scales the logits, which the divided head would not.
    model = make("cohere")
    around = describe("cohere", model).given() | {"first": (), "last": ("model.norm",), "calls": {}}
    with pytest.warns(UserWarning, match="no stage has lm_head"):
        split(model, make_split((1, 2)), **around)


def test_a_tie_that_the_config_wants_and_the_weights_have_not_is_refused() -> None:
    model = make("llama")
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    with pytest.raises(ValueError, match="weights of their own"):
        split(model, make_split((1, 2)), **describe("llama", model).given())


def test_the_microbatch_may_be_given_and_the_check_left_out() -> None:
    model = make("llama")
    given = describe("llama", model).given()
    padded = {
        "input_ids": torch.ones(1, 4, dtype=torch.long),
        "position_ids": torch.arange(4)[None],
    }
    assert split(model, make_split((3,)), **given, check=padded)
    wrong = describe("llama", model, masked=False).given()
    assert split(model, make_split((3,)), **wrong, check=padded)  # of one sample: no mask between
    assert split(model, make_split((3,)), **wrong, check=False)
    with pytest.raises(ValueError, match="calls= names lm_heat"):
        split(model, make_split((3,)), **{**given, "calls": {"lm_heat": half}})
    with torch.device("meta"):
        assert split(make("llama"), make_split((3,)), **describe("llama", model).names)


def test_a_model_for_which_no_microbatch_can_be_made_asks_for_one() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

        def forward(self, x: Tensor, y: Tensor) -> Any:
            return self.layers(x) + y

    with pytest.raises(ValueError, match="forward takes y; give check="):
        split(Two(), make_split((2,)))
    with pytest.raises(ValueError, match="begin with a Tanh"):
        split(nn.Sequential(nn.Tanh(), nn.Linear(2, 2)), make_split((2,)), layers="")
