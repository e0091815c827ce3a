"""A tiny model of each family in the installed transformers, of its own default configuration.

Sizes are made small by the names that configurations share, and one layer of each kind stays, at
least two. Windows are made so small that samples and packs are longer. What a family wants besides
is in OVERRIDES.
"""

import logging
import warnings
from typing import Any

import torch

# By name, in any configuration of a family.
SIZES = {
    (
        "hidden_size", "d_model", "n_embd", "dim", "embed_dim", "word_embed_proj_dim", "width",
        "model_dim", "out_hidden_size", "projection_dim", "text_hidden_size", "lm_hidden_size",
        "output_dim", "embedding_size", "n_embed", "backbone_hidden_size", "attention_hidden_size",
        "proj_hidden_size", "cross_attention_dim",
    ): 64,
    (
        "intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size", "mlp_dim",
        "decoder_ffn_dim", "encoder_ffn_dim", "intermediate_size_mlp", "dense_intermediate_size",
        "projector_intermediate_size",
    ): 96,
    (
        "moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size",
        "moe_shared_expert_intermediate_size", "shared_intermediate_size",
    ): 32,
    (
        "num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads",
        "encoder_attention_heads", "attention_heads",
    ): 4,
    (
        "head_dim", "d_kv", "attention_head_dim", "global_head_dim", "swa_head_dim", "v_head_dim",
        "swa_v_head_dim", "qk_head_dim", "d_head",
    ): 16,
    ("q_lora_rank", "kv_lora_rank", "o_lora_rank"): 16,
    ("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim"): 8,
    ("vocab_size", "vocab_size_per_layer_input"): 300,
    ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"): 4,
    (
        "num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k",
        "top_k_experts",
    ): 2,
    ("n_group", "topk_group", "n_shared_experts", "moe_num_shared_experts"): 1,
    ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len"): 128,
    ("sliding_window", "attention_chunk_size", "sliding_window_size",
     "attention_window_size", "index_topk"): 4,
    ("window_size",): 16,
    ("image_size",): 32,
    ("patch_size",): 8,
    ("mm_tokens_per_image",): 4,
    ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"): 8,
    ("mamba_d_head", "mamba_head_dim"): 16,
    ("mamba_d_state", "state_size", "ssm_state_size"): 8,
    ("mamba_d_ssm",): 128,
    ("linear_num_key_heads",): 2,
    ("linear_num_value_heads",): 4,
    ("linear_key_head_dim", "linear_value_head_dim"): 8,
    ("chunk_size", "mamba_chunk_size"): 8,
}  # fmt: skip
SMALL = {name: size for names, size in SIZES.items() for name in names}
DEPTHS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "decoder_layers",
    "encoder_layers",
)  # fmt: skip
KEY_HEADS = ("num_key_value_heads", "n_head_kv", "num_kv_heads", "swa_num_key_value_heads")
# Parameters above which a model is not a tiny one, and no test's.
LARGEST = 20_000_000
# Images of the samples of a batch, in patches: one, none, two, one.
GRIDS = ([(1, 4, 4)], [], [(1, 4, 8), (1, 4, 4)], [(1, 8, 4)])
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
MROPE = {"text_config": {"rope_parameters": ROPE}}
GEMMA_VISION = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 16, "patch_size": 4, "position_embedding_size": 64,
}  # fmt: skip
OVERRIDES: dict[str, dict[str, Any]] = {
    "qwen2_vl": MROPE,
    "qwen2_5_vl": MROPE,
    "qwen2_5_omni_thinker": {**MROPE, "vision_start_token_id": 131},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 131},
    "paddleocr_vl": MROPE,
    "glm46v": MROPE,
    "glm4v": MROPE,
    "glm4v_moe": {"text_config": {"rope_parameters": ROPE | {"partial_rotary_factor": 1.0}}},
    "glm_ocr": MROPE,
    "glmga": MROPE,
    # as the published 26B and 31B: the default has no vision part
    "gemma4": {
        "vision_config": GEMMA_VISION, "text_config": {"use_bidirectional_attention": "vision"},
    },
    "gemma4_unified": {
        "vision_config": {
            "mm_embed_dim": 64, "output_proj_dims": 64, "mm_posemb_size": 32, "patch_size": 4,
        },
        "text_config": {"use_bidirectional_attention": "vision"},
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "lfm2_vl": {
        "text_config": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2}
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"num_experts_per_tok": 2, "n_routed_experts": 4},
    "hunyuan_v1_moe": {"head_dim": 16, "moe_topk": 2, "num_experts": 4},
    "hunyuan_v1_dense": {"head_dim": 16},
    "ministral": {"head_dim": 16},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "zamba2": {"attention_head_dim": 32},
    "mistral4": {"qk_rope_head_dim": 8, "head_dim": 8},
    "step3p7": {"text_config": {"sliding_window": 4}},
    "xmod": {"default_language": "en_XX", "is_decoder": True},
}  # fmt: skip
# Those whose default is an encoder.
ENCODERS = (
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie",
    "megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer",
    "xlm-roberta", "xlm-roberta-xl",
)  # fmt: skip


def families() -> dict[str, str]:
    """Return the class of each model type that has a causal LM or image-text-to-text class."""
    from transformers.models.auto import modeling_auto as auto

    found = dict(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    found.update(auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    return {k: v if isinstance(v, str) else v[0] for k, v in sorted(found.items())}


def build(kind: str, attention: str | None = None, **more: Any) -> Any:
    """Return a tiny model of a family in float32; any error that its making raises.

    more: values of its configuration.
    """
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("transformers").setLevel(logging.CRITICAL)
        model_class = getattr(transformers, families()[kind])
        config_class = model_class.config_class
        values = _merged(_shrunk(config_class().to_dict()), OVERRIDES.get(kind, {}))
        values |= {"is_decoder": True} if kind in ENCODERS else {}
        for name in ("dtype", "architectures", "transformers_version", "model_type"):
            values.pop(name, None)
        config = config_class(**_merged(values, more))
        if attention:
            config._attn_implementation = attention
        with torch.device("meta"):
            size = sum(each.numel() for each in model_class(config).parameters())
        if size > LARGEST:
            raise ValueError(f"it still has {size} parameters")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return model_class(config).float()


def _shrunk(given: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration's dict with small sizes."""
    made = dict(given)
    depth = next((given[n] for n in DEPTHS if isinstance(given.get(n), int)), 0)
    lists = [v for v in given.values() if isinstance(v, list) and len(v) == depth > 0]
    kinds = [str(each) for each in zip(*lists, strict=True)] or ["layer"] * depth
    kept = sorted({kinds.index(kind) for kind in kinds} | {*range(min(2, depth))})[:4]
    heads = given.get("num_attention_heads") or 0
    for name, value in given.items():
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if name == "per_layer_config":
            made[name] = None
        elif isinstance(value, dict):
            nested = "config" in name or "model_type" in value
            made[name] = _shrunk(value) if nested else value
        elif isinstance(value, list) and len(value) == depth > 0:
            made[name] = [value[place] for place in kept]
        elif name in DEPTHS and is_whole:
            made[name] = len(kept)
        elif name in KEY_HEADS and is_whole:
            made[name] = 1 if value == 1 else 2 if value < heads else 4
        elif name in SMALL and is_whole:
            made[name] = min(SMALL[name], value) if "expert" in name else SMALL[name]
        elif name.endswith(("_token_id", "_token_index")) and is_whole and value >= 200:
            # a token has one number in all configurations of a family
            letters = name.removesuffix("_id").removesuffix("_index")
            made[name] = 200 + sum(map(ord, letters)) % 90
    if "qk_rope_head_dim" in given and "head_dim" in given:
        made["head_dim"] = 8
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(made.get(name), dict) and "mrope_section" in made[name]:
            made[name] = {**made[name], "mrope_section": [2, 3, 3]}
    return made


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    made = dict(one)
    for name, value in other.items():
        is_nested = isinstance(value, dict) and isinstance(made.get(name), dict)
        made[name] = _merged(made[name], value) if is_nested else value
    return made


def samples_of(config: Any, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Return four samples of text with images of patches in it, as a processor makes them."""
    generator = torch.Generator().manual_seed(1)
    vision, made = config.vision_config, []
    merged = vision.spatial_merge_size**2
    depth = vision.temporal_patch_size * vision.patch_size**2 * 3
    for number, grids in enumerate(GRIDS):
        parts = [torch.randint(3, 90, (4 + number,), generator=generator)]
        for grid in grids:
            image = torch.full((grid[1] * grid[2] // merged,), config.image_token_id)
            parts += [image, torch.randint(3, 90, (3,), generator=generator)]
        ids = torch.cat(parts)
        labels = torch.where(ids == config.image_token_id, -100, ids)
        labels[0] = -100
        sample = {"input_ids": ids, "labels": labels}
        if grids:
            patches = sum(t * h * w for t, h, w in grids)
            pixels = torch.randn(patches, depth, generator=generator, dtype=torch.float64)
            sample |= {"pixel_values": pixels.to(dtype), "image_grid_thw": torch.tensor(grids)}
        made.append(sample)
    return made
