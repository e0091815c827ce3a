"""What models compute of packed samples: loss and gradients, and what the leak test finds."""

import copy
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

pytest.importorskip("transformers", reason="transformers is an optional extra")
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from counterpoise.loader import collate_packed, hf_kwargs
from counterpoise.loader.adapters.trainer import for_model
from counterpoise.loader.models import proof as proving
from counterpoise.loader.models.copies import small_copies
from counterpoise.loader.models.kwargs import unwrapped
from counterpoise.loader.models.proof import check_packing, prove_packing

from .families import build, samples_of
from .family_rows import *  # noqa: F403 - its processes import transformers once


@pytest.fixture(autouse=True)
def nothing_is_known() -> Iterator[None]:
    """Every test proves for itself, whatever the others have."""
    proving._PROVED.clear()
    yield
    proving._PROVED.clear()


def llama(layers: int = 2, **more: Any) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=90, hidden_size=16, intermediate_size=32, num_hidden_layers=layers,
        num_attention_heads=2, max_position_embeddings=64, **more,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config)


# Loss and gradients


def gradients(model: nn.Module, losses: list[Tensor]) -> dict[str, Tensor]:
    trained = dict(model.named_parameters())
    total = sum(losses, torch.zeros(()))
    # features that a tiny model does not use
    found = torch.autograd.grad(
        total, [*trained.values()], materialize_grads=True, allow_unused=True
    )
    return dict(zip(trained, found, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_packed_images_train_as_sample_by_sample(
    kind: str, attention: str, dtype: torch.dtype
) -> None:
    model = build(kind, attention=attention).to(dtype).train()
    samples = samples_of(model.config, dtype)
    apart = []
    for sample in samples:
        ids = sample["input_ids"][None]
        given = {k: v for k, v in sample.items() if k not in ("input_ids", "labels")}
        types = (ids == model.config.image_token_id).long()
        output = model(
            input_ids=ids, labels=sample["labels"][None], mm_token_type_ids=types,
            attention_mask=torch.ones_like(ids), **given,
        )  # fmt: skip
        apart.append(output.loss * (sample["labels"] != -100).sum())
    batch = collate_packed(samples)
    # as attach_trainer gives it to the model
    packed = [model(**for_model(batch, model)).loss * (batch["labels"] != -100).sum()]
    most = 1e-6 if dtype is torch.float64 else 1e-4
    total = float(packed[0].detach())
    assert total == pytest.approx(sum(float(each.detach()) for each in apart), rel=most)
    expected, found = gradients(model, apart), gradients(model, packed)
    for name, each in expected.items():
        assert (found[name] - each).abs().max() <= most * max(float(each.abs().max()), 1e-3), name
    # without the model it is another loss: what is compared can differ
    texts = {name: each for name, each in batch.items() if name != "image_grid_thw"}
    told = for_model(batch, model) | hf_kwargs(texts)
    with torch.no_grad():
        mixed = float(model(**told).loss * (batch["labels"] != -100).sum())
    assert abs(mixed - total) > 2 * most * total


# What hf_kwargs gives


def test_positions_are_the_text_and_what_the_model_makes_of_each_sample() -> None:
    model = build("qwen2_5_vl")
    samples = samples_of(model.config, torch.float32)
    batch = collate_packed(samples)
    told = hf_kwargs(batch, model)
    assert told["position_ids"].shape == (4, 1, batch["input_ids"].shape[1])
    assert told["position_ids"][0].equal(batch["position_ids"])
    ends = batch["cu_seq_lens"].tolist()
    for sample, (begin, end) in zip(samples, pairwise(ends), strict=True):
        ids = sample["input_ids"][None]
        types = (ids == model.config.image_token_id).long()
        expected, _ = model.model.get_rope_index(
            ids, mm_token_type_ids=types, image_grid_thw=sample.get("image_grid_thw")
        )
        assert told["position_ids"][1:, :, begin:end].equal(expected)
        assert told["mm_token_type_ids"][:, begin:end].equal(types)
    # an image's tokens share a time: this is no count of tokens
    assert not told["position_ids"][1].equal(batch["position_ids"])


def test_a_batch_without_images_has_no_field_of_them_for_the_model() -> None:
    model = build("qwen2_vl").train()
    samples = samples_of(model.config, torch.float32)
    text = {"pixel_values": torch.zeros(0, 1176), "image_grid_thw": torch.zeros(0, 3).long()}
    batch = collate_packed([{**samples[1], **text}])
    assert "image_grid_thw" in batch
    given = for_model(batch, model)
    assert {"pixel_values", "image_grid_thw", "images_per_sample"}.isdisjoint(given)
    assert model(**given).loss.isfinite()


def test_positions_that_samples_bring_are_used_as_they_are() -> None:
    model = build("qwen2_vl")
    batch = collate_packed(samples_of(model.config, torch.float32))
    own = torch.arange(3 * batch["input_ids"].numel()).reshape(3, 1, -1)
    assert hf_kwargs(batch | {"mrope_position_ids": own}, model)["position_ids"][1:].equal(own)


def test_grids_that_are_not_those_of_the_tokens_are_refused() -> None:
    model = build("qwen2_vl")
    batch = collate_packed(samples_of(model.config, torch.float32))
    batch["image_grid_thw"] = batch["image_grid_thw"][1:]
    with pytest.raises(ValueError, match="image_grid_thw does not divide so"):
        hf_kwargs(batch, model)
    with pytest.raises(ValueError, match=r"give hf_kwargs\(batch, model\)"):
        hf_kwargs(batch)


def text_batch(**more: Any) -> dict[str, Any]:
    return {
        "input_ids": torch.arange(3, 11)[None],
        "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]]),
        "cu_seq_lens": torch.tensor([0, 3, 7], dtype=torch.int32),
        "cu_seq_lens_padded": torch.tensor([0, 4, 8], dtype=torch.int32),
        "max_length": 4,
        **more,
    }


def test_state_space_layers_are_told_the_number_of_each_tokens_sample() -> None:
    told = hf_kwargs(text_batch(), build("bamba"))
    assert told["seq_idx"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    assert told["seq_idx"].dtype == torch.int32
    # padding between samples is not a sample of its own: models know no gaps
    assert told["cu_seq_lens_q"].tolist() == [0, 4, 8]
    assert "seq_idx" not in hf_kwargs(text_batch(), llama())
    assert "seq_idx" not in hf_kwargs(text_batch())


def lora(model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], r=2))


def test_wrapped_models_are_looked_into() -> None:
    model = build("qwen2_vl")
    batch = collate_packed(samples_of(model.config, torch.float32))
    expected = hf_kwargs(batch, model)["position_ids"]
    adapted = lora(model)
    for wrapped in (torch.compile(model), adapted, nn.DataParallel(adapted)):
        assert unwrapped(wrapped) is model
        assert hf_kwargs(batch, wrapped)["position_ids"].equal(expected)


# What the leak test finds


class Leaking(LlamaForCausalLM):
    """A Llama that is made to leak: it takes what it is told, and does not use it."""

    def forward(self, input_ids: Any, position_ids: Any = None, **_: Any) -> Any:  # noqa: ARG002
        return super().forward(input_ids, use_cache=False)


class Shifting(LlamaForCausalLM):
    """Keeps samples apart, with learned places that go on from one sample to the next."""

    def forward(self, input_ids: Any, position_ids: Any = None, **_: Any) -> Any:
        held = self.get_input_embeddings()(input_ids)
        held = held + torch.linspace(0, 1, held.shape[1])[None, :, None]
        return super().forward(inputs_embeds=held, position_ids=position_ids, use_cache=False)


class Bare(nn.Module):
    """No model of transformers; its forward() takes tokens only."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = llama()

    def forward(self, input_ids: Any) -> dict[str, Any]:
        return {"logits": self.inner(input_ids).logits}


def test_models_that_keep_samples_apart_are_exact() -> None:
    for model in (llama(), llama(attn_implementation="eager"), lora(llama()), llama().double()):
        assert prove_packing(model).status == "exact"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_types_of_16_bits_are_decided_in_float32(dtype: torch.dtype) -> None:
    assert prove_packing(llama().to(dtype)).status == "exact"
    leaking = Leaking(llama().config).to(dtype)
    assert "mixes them" in prove_packing(leaking).reason


def test_models_that_mix_samples_are_refused_with_what_would_be_right() -> None:
    with pytest.raises(ValueError, match="Leaking does not keep packed samples apart") as error:
        check_packing(Leaking(llama().config))
    assert 'give the loader Balance(layout="padded")' in str(error.value)
    with pytest.raises(ValueError, match="other logits than alone"):
        check_packing(Shifting(llama().config))
    with pytest.raises(ValueError, match="unexpected keyword argument 'position_ids'"):
        check_packing(Bare())
    assert prove_packing(Bare()).raises
    assert not prove_packing(Leaking(llama().config)).raises


def test_another_attention_is_advised_where_it_was_seen_to_be_right() -> None:
    def mine(module: Any, query: Any, key: Any, value: Any, mask: Any, **_: Any) -> Any:
        out = scaled_dot_product_attention(query, key, value, is_causal=True)
        return out.transpose(1, 2), None

    AttentionInterface.register("mine", mine)  # without a function for its mask
    with pytest.raises(ValueError, match='attn_implementation="sdpa"') as error:
        check_packing(llama(attn_implementation="mine"))
    assert "with mine attention" in str(error.value)


def test_m_rope_needs_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("qwen2_vl")
    assert prove_packing(model).status == "exact"
    assert prove_packing(model, images=True).status == "exact"
    proving._PROVED.clear()
    monkeypatch.setattr(proving, "hf_kwargs", lambda batch, _: hf_kwargs(batch))
    assert prove_packing(model).status == "refused"


def test_what_cannot_run_here_is_not_proved(caplog: pytest.LogCaptureFixture) -> None:
    model = llama()
    model.config._attn_implementation = "flash_attention_2"
    proof = check_packing(model)
    assert proof.status == "not proved"
    assert "whether LlamaForCausalLM keeps packed samples apart is not proved" in proof.reason
    assert proof.reason in caplog.messages
    assert prove_packing(nn.Linear(2, 2)).status == "not proved"


def test_a_model_that_does_not_look_back_proves_nothing() -> None:
    model = llama()
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight = nn.Parameter(torch.full((16, 16), 1e-9))
    proof = prove_packing(model)
    assert proof.status == "not proved"
    assert "by its own earlier tokens" in proof.reason


def test_the_model_is_left_as_it_is() -> None:
    model = lora(llama(layers=6, attention_dropout=0.5))
    model.train()
    model.base_model.model.lm_head.weight.grad = torch.ones(90, 16)
    state = copy.deepcopy(model.state_dict())
    config = copy.deepcopy(model.config.to_dict())
    modules, random = list(model.modules()), torch.get_rng_state()
    assert prove_packing(model).status == "exact"
    assert torch.get_rng_state().equal(random)
    assert all(value.equal(state[name]) for name, value in model.state_dict().items())
    assert model.config.to_dict() == config
    assert list(model.modules()) == modules
    assert all(each.training for each in modules)
    assert [n for n, p in model.named_parameters() if p.grad is not None] == [
        "base_model.model.lm_head.weight"
    ]
    layers = model.base_model.model.model.layers
    assert [each.self_attn.layer_idx for each in layers] == [*range(6)]
    assert layers[0].self_attn.attention_dropout == 0.5


def test_a_class_and_configuration_are_proved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    prove = proving._prove

    def counted(*given: Any) -> Any:
        found.append(given)
        return prove(*given)

    monkeypatch.setattr(proving, "_prove", counted)
    for _ in range(3):
        prove_packing(llama())
    assert len(found) == 1
    prove_packing(llama(layers=3))
    prove_packing(llama().double())
    prove_packing(llama(attn_implementation="eager"))
    prove_packing(Leaking(llama().config))
    assert len(found) == 5


def test_copies_share_weights_and_keep_a_layer_of_each_kind() -> None:
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    model = build("gemma3_text", num_hidden_layers=12, layer_types=kinds * 2)
    small = small_copies(model)[0]()
    assert small.config.layer_types == ["sliding_attention", "full_attention"]
    assert len(small.model.layers) == small.config.num_hidden_layers == 2
    assert len(model.model.layers) == model.config.num_hidden_layers == 12
    kept, own = small.model.layers[1], model.model.layers[5]
    assert kept.self_attn.q_proj.weight is own.self_attn.q_proj.weight
    assert (kept.self_attn.layer_idx, own.self_attn.layer_idx) == (1, 5)
    # what LoRA adds is zero until it is trained, and is looked at all the same
    adapted = lora(llama())
    zeros = [each for name, each in adapted.named_parameters() if "lora_B" in name]
    assert not any(each.any() for each in zeros)
    values = [p for name, p in small_copies(adapted)[0]().named_parameters() if "lora_B" in name]
    assert all(each.any() for each in values)


def test_a_model_without_weights_here_is_made_anew_of_its_configuration() -> None:
    with torch.device("meta"):
        model, leaking = llama(layers=8), Leaking(llama().config)
    assert prove_packing(model).status == "exact"
    assert prove_packing(leaking).status == "refused"
