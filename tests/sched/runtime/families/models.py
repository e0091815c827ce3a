"""Tiny models of transformers of every family, and microbatches for them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

HIDDEN = 16
WORDS, IMAGE = 64, 60
WINDOW = 3
SIZES: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": HIDDEN, "intermediate_size": 32, "num_hidden_layers": 4,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
HEAD = {"head_dim": 8}
WINDOWS = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
EXPERTS |= {"output_router_logits": True, "router_aux_loss_coef": 0.5}
GEMMA = HEAD | {"sliding_window": WINDOW, "query_pre_attn_scalar": 8}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8}
LATENT |= {"v_head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "topk_group": 1}
LATENT |= {"moe_intermediate_size": 16, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
LATENT |= {"num_key_value_heads": 2}
GPT2 = {"vocab_size": WORDS, "n_embd": HIDDEN, "n_layer": 4, "n_head": 2, "n_positions": 64}

# What tiny configs of a family have beside, or in place of, the sizes.
TEXT: dict[str, dict[str, Any]] = {
    "cohere": {},
    "cohere2": HEAD | {"sliding_window": WINDOW},
    "deepseek_v2": LATENT | {"n_group": 1},
    "deepseek_v3": LATENT | {"n_group": 2},
    "gemma": HEAD,
    "gemma2": GEMMA | {"final_logit_softcapping": 2.0},
    "gemma3_text": GEMMA
    | {"final_logit_softcapping": 2.0, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gpt2": GPT2,
    "gpt_neox": {},
    "granite": {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.2},
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "mixtral": EXPERTS | {"sliding_window": WINDOW, "num_local_experts": 4},
    "olmo": {},
    "olmo2": {},
    "olmo3": {"sliding_window": WINDOW},
    "olmoe": EXPERTS | {"num_experts": 12},  # whose shares take two rows
    "phi": {},
    "phi3": {"sliding_window": WINDOW},
    "qwen2": WINDOWS,
    "qwen2_moe": EXPERTS | WINDOWS | {"shared_expert_intermediate_size": 16},
    "qwen3": HEAD | WINDOWS,
    "qwen3_moe": HEAD | EXPERTS,
    "smollm3": {"no_rope_layer_interval": 2},
    "stablelm": {},
}

TOWER = {"hidden_size": HIDDEN, "intermediate_size": 32, "num_hidden_layers": 2}
TOWER |= {"num_attention_heads": 2, "image_size": 8}
PATCHES = {"patch_size": 2, "temporal_patch_size": 1, "spatial_merge_size": 2, "num_heads": 2}
ROPE = {"rope_type": "default", "type": "default", "rope_theta": 1e4}
MROPE = SIZES | {"rope_parameters": ROPE | {"mrope_section": [1, 1, 2]}}


class Pictures(NamedTuple):
    """The images of a family: the config, and the size of one image.

    `patches`: whether pixels are patches in grids, and not tiles; `masked`: whether masks of pixels
    come with them.
    """

    config: dict[str, Any]
    patches: bool = False
    masked: bool = False


def _patched(text: dict[str, Any], vision: dict[str, Any]) -> Pictures:
    vision = PATCHES | vision
    own = {"image_token_id": IMAGE, "video_token_id": 61, "vision_start_token_id": 62}
    return Pictures({"text_config": text, "vision_config": vision, **own}, patches=True)


LLAMA = SIZES | {"model_type": "llama"}
IMAGES: dict[str, Pictures] = {
    "llava": Pictures(
        {
            "text_config": LLAMA,
            "vision_config": TOWER | {"model_type": "clip_vision_model", "patch_size": 4},
            "image_token_id": IMAGE, "image_token_index": IMAGE,
        }
    ),
    "qwen2_vl": _patched(MROPE, {"depth": 2, "embed_dim": 16, "hidden_size": HIDDEN}),
    "qwen2_5_vl": _patched(
        MROPE,
        {
            "depth": 2, "hidden_size": 16, "out_hidden_size": HIDDEN, "intermediate_size": 32,
            "window_size": 8, "fullatt_block_indexes": [1],
        },
    ),
    "qwen3_vl": _patched(
        MROPE | HEAD,
        {
            "depth": 3, "hidden_size": 16, "out_hidden_size": HIDDEN, "intermediate_size": 32,
            "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16,
        },
    ),
    "internvl": Pictures(
        {
            "text_config": SIZES | {"model_type": "qwen2"},
            "vision_config": TOWER | {"image_size": [8, 8], "patch_size": [4, 4]},
            "image_token_id": IMAGE,
        }
    ),
    "smolvlm": Pictures(
        {
            "text_config": LLAMA, "vision_config": TOWER | {"patch_size": 2},
            "image_token_id": IMAGE, "scale_factor": 2, "pad_token_id": 0,
        },
        masked=True,
    ),
}  # fmt: skip


def make(kind: str, *, tied: bool = True, **more: Any) -> Any:
    """Return a tiny model of a family, the same each time, whose norms do something."""
    torch.manual_seed(0)
    if kind in IMAGES:
        given = dict(IMAGES[kind].config)
        text = given["text_config"] | {"tie_word_embeddings": tied} | more
        given |= {"text_config": text, "tie_word_embeddings": tied}
        config = transformers.AutoConfig.for_model(kind, **given)
        model = transformers.AutoModelForImageTextToText.from_config(config)
    else:
        sizes = {} if kind == "gpt2" else SIZES
        given = {**sizes, **TEXT[kind], "tie_word_embeddings": tied, **more}
        ends = {"bos_token_id": 1, "eos_token_id": 2}
        config = transformers.AutoConfig.for_model(kind, **{**ends, **given})
        model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.rand_like(parameter) / 4)
            else:  # those of experts are made empty, and attention should not be even
                parameter.copy_(torch.randn_like(parameter) / 8)
    # dropout would differ between a pipeline and one process
    return model.eval()


def tiles(count: int, chance: torch.Generator) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=chance)


def features_of(kind: str, model: Any) -> int:
    """Return the features of one image of 8 x 8 pixels."""
    from counterpoise.sched.runtime import families

    found: Any = families()[kind].tokens(model.config)
    return int(found["tiles"]) if isinstance(found, Mapping) else 4


def microbatch(
    kind: str, model: Any, lengths: tuple[int, ...], images: tuple[int, ...], seed: int
) -> dict[str, Any]:
    """Return a packed microbatch. `images`: of each sample, before its words."""
    chance = torch.Generator().manual_seed(seed)
    each = features_of(kind, model) if kind in IMAGES else 0
    ids, labels, positions = [], [], []
    for length, count in zip(lengths, images, strict=True):
        start = [62] if IMAGES.get(kind, Pictures({})).patches else []
        before = torch.tensor((start + [IMAGE] * each) * count, dtype=torch.long)
        words = torch.randint(3, 60, (length,), generator=chance)
        ids.append(torch.cat([before, words]))
        # the first token of a sample is predicted by nothing of its own
        labels.append(torch.cat([torch.full_like(before, -100), words]))
        labels[-1][0] = -100
        positions.append(torch.arange(len(ids[-1])))
    ends = torch.tensor([0, *[len(each) for each in ids]]).cumsum(0).to(torch.int32)
    batch: dict[str, Any] = {
        "input_ids": torch.cat(ids)[None],
        "labels": torch.cat(labels)[None],
        "position_ids": torch.cat(positions)[None],
        "cu_seq_lens": ends,
        "max_length": int(ends.diff().max()),
    }
    if kind in IMAGES:
        batch |= _pixels(IMAGES[kind], sum(images), chance)
    return batch


def _pixels(pictures: Pictures, count: int, chance: torch.Generator) -> dict[str, Tensor]:
    if pictures.patches:
        pixels = torch.randn(16 * count, 3 * 2 * 2, generator=chance)
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, 4, 4]] * count).long()}
    pixels = tiles(count, chance)
    masks = {"pixel_attention_mask": torch.ones(count, 8, 8, dtype=torch.bool)}
    return {"pixel_values": pixels} | (masks if pictures.masked else {})
