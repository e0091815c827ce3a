"""Faults that are in some samples of a pack only, by place, number, length or order."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="transformers is an optional extra")
from transformers import LlamaConfig, LlamaForCausalLM

from counterpoise.loader.models.proof import check_packing, prove_packing

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


@pytest.mark.parametrize("kind", ["gemma3", "gemma4"])
def test_masks_of_images_by_places_in_the_pack_are_refused_with_images_only(kind: str) -> None:
    model = build(kind)
    check_packing(model)
    with pytest.raises(ValueError, match=r"other logits than alone.*masks of images"):
        check_packing(model, images=True)


def test_windows_and_scales_of_thousands_of_tokens_are_crossed() -> None:
    windowed = build("mistral", sliding_window=4096)
    assert prove_packing(windowed).status == "exact"
    assert windowed.config.sliding_window == 4096
    # queries are scaled by their place in the pack, from the 8,192nd token on
    scaled = build("llama4_text", floor_scale=8192)
    with pytest.raises(ValueError, match="other logits than alone"):
        check_packing(scaled)
