"""Faults that are in some samples of a pack only, by place, number, length or order."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="transformers is an optional extra")
from transformers import LlamaConfig, LlamaForCausalLM

from counterpoise.loader.adapters.accelerate import AccelerateFeed
from counterpoise.loader.models.kwargs import hf_kwargs
from counterpoise.loader.models.proof import _warn_once, check_packing, prove_packing
from counterpoise.loader.models.samples import packed

from .families import build

# (numbers of the samples of queries and keys, how far back keys are) -> what else is attended to
FAULTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "each token's next, from the third sample on": (
        lambda query, key, back: (query == key) & (query > 1) & (back == -1)
    ),
    "the next sample's first token, by the last of the second": (
        lambda query, key, back: (query == 1) & (key == 2) & (back == -1)
    ),
    "the first sample, by the last of four": lambda query, key, _: (query == 3) & (key == 0),
    "the future, in samples of more than ten tokens": (
        lambda query, key, back: (
            (query == key) & (back < 0) & ((query == key).sum(1, keepdim=True) > 10)
            & (query.max() > 0)
        )
    ),
}  # fmt: skip


class Asymmetric(LlamaForCausalLM):
    """Makes its own mask, which is right alone and has a fault in packs."""

    fault: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None

    def forward(self, input_ids: Any, position_ids: Any = None, **_: Any) -> Any:
        places = torch.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
        numbers, far = (places[0] == 0).cumsum(0) - 1, torch.arange(places.shape[1])
        query, key, back = numbers[:, None], numbers[None], far[:, None] - far
        seen = (query == key) & (back >= 0)
        if self.fault is not None:
            seen = seen | self.fault(query, key, back)
        bias = torch.zeros(seen.shape).masked_fill(~seen, -1e9)[None, None]
        return super().forward(input_ids, attention_mask=bias, position_ids=places, use_cache=False)


def asymmetric() -> Asymmetric:
    config = LlamaConfig(
        vocab_size=90, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Asymmetric(config)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_some_samples_of_a_pack_is_refused(fault: str) -> None:
    model = asymmetric()
    assert prove_packing(model).status == "exact"

    class Faulty(Asymmetric):
        pass

    faulty = Faulty(model.config)
    faulty.fault = FAULTS[fault]
    assert prove_packing(faulty).status == "refused"


@pytest.mark.parametrize("kind", ["gemma3", "gemma4", "gemma4_unified"])
def test_masks_of_images_by_places_in_the_pack_are_refused_with_images_only(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(kind)
    _warn_once.cache_clear()
    check_packing(model)  # texts: taken, and the user hears of images
    (message,) = caplog.messages
    with pytest.raises(ValueError, match=r"other logits than alone.*masks of images") as refused:
        check_packing(model, images=True)
    assert message == f"the first packed batch with images will raise: {refused.value}"


def test_windows_of_thousands_of_tokens_are_crossed() -> None:
    windowed = build("mistral", sliding_window=4096)
    assert prove_packing(windowed).status == "exact"
    assert windowed.config.sliding_window == 4096


def test_llama_4_takes_packs_until_it_scales_queries_by_their_place_in_the_pack() -> None:
    model = build("llama4_text", floor_scale=40)
    check_packing(model)
    samples = [{"input_ids": torch.arange(3, 3 + length)[None]} for length in (20, 19, 3)]
    short, long = packed(samples[:2]), packed(samples)
    with torch.no_grad():
        alone = model(**samples[1], use_cache=False).logits
        inside = model(input_ids=short["input_ids"], **hf_kwargs(short, model)).logits
        torch.testing.assert_close(inside[:, 20:], alone)
        alone = model(**samples[2], use_cache=False).logits
        wrong = model(input_ids=long["input_ids"], **hf_kwargs(long)).logits
    assert not torch.allclose(wrong[:, 39:], alone)
    with pytest.raises(ValueError, match=r'42 tokens, and Llama4.*budgets=\{"tokens": 39\}'):
        hf_kwargs(long, model)
    hf_kwargs(packed([{"input_ids": torch.arange(3, 60)[None]}]), model)  # alone, it is scaled too


def test_a_feed_of_accelerate_refuses_packs_too_long_for_llama_4() -> None:
    accelerator = SimpleNamespace(_models=[build("llama4_text", floor_scale=40)])
    feed = AccelerateFeed(None, accelerator=accelerator)
    sample = {"input_ids": torch.arange(3, 23)[None]}
    feed.place(packed([sample]))
    with pytest.raises(ValueError, match="this pack has 40 tokens"):
        feed.place(packed([sample, sample]))
