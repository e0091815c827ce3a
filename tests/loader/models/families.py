"""A tiny model of each family in the installed transformers, of its own default configuration.

Sizes are made small by the names that configurations share; layers are left out as the product's
copies are shortened: one of each kind stays. What a family wants besides is in OVERRIDES.
"""

import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch

# By name, in any configuration of a family. None leaves a name as it is.
SIZES = {
    ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "word_embed_proj_dim", "model_dim",
     "out_hidden_size", "projection_dim", "text_hidden_size", "lm_hidden_size", "width",
     "output_dim", "embedding_size", "pooler_hidden_size", "n_embed", "backbone_hidden_size",
     "attention_hidden_size", "proj_hidden_size", "cross_attention_dim"): 64,
    ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size", "mlp_dim",
     "decoder_ffn_dim", "encoder_ffn_dim", "intermediate_size_mlp", "dense_intermediate_size",
     "ffn_config", "projector_intermediate_size", "adapter_intermediate_dim"): 96,
    ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size",
     "moe_shared_expert_intermediate_size", "shared_intermediate_size"): 32,
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "decoder_layers",
     "encoder_layers"): None,
    ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads",
     "encoder_attention_heads", "attention_heads"): 4,
    ("head_dim", "d_kv", "attention_head_dim", "global_head_dim", "swa_head_dim", "v_head_dim",
     "swa_v_head_dim", "attention_head_size"): 16,
    ("q_lora_rank", "kv_lora_rank", "o_lora_rank"): 16,
    ("qk_rope_head_dim", "qk_nope_head_dim"): 8,
    ("qk_head_dim",): 16,
    ("vocab_size", "vocab_size_per_layer_input"): 300,
    ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"): 4,
    ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k", "top_k_experts"): 2,
    ("n_group", "topk_group"): 1,
    ("n_shared_experts", "moe_num_shared_experts"): 1,
    ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len"): 128,
    ("image_size",): 32,
    ("patch_size",): 8,
    ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"): 8,
    ("mamba_d_head", "mamba_head_dim"): 16,
    ("mamba_d_state", "state_size", "ssm_state_size"): 8,
    ("mamba_d_ssm",): 128,
    ("linear_num_key_heads",): 2,
    ("linear_num_value_heads",): 4,
    ("linear_key_head_dim", "linear_value_head_dim"): 8,
    ("chunk_size", "mamba_chunk_size"): 8,
    ("num_channels",): None,
}  # fmt: skip
SMALL = {name: size for names, size in SIZES.items() for name in names}
DEPTHS = next(names for names in SIZES if "depth" in names)
KV = (
    "num_key_value_heads",
    "n_head_kv",
    "num_kv_heads",
    "swa_num_key_value_heads",
    "multi_query_group_num",
)
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
OVERRIDES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_thinker", "paddleocr_vl"), {"text_config": MROPE}
    ),
    **dict.fromkeys(
        ("glm46v", "glm4v", "glm4v_moe", "glm_ocr", "glmga", "hunyuan_vl"), {"text_config": MROPE}
    ),
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 131},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "mamba2": {"num_heads": 8},
    "xlnet": {"d_head": 16},
    "bart": {},
    "ministral": {"head_dim": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "gemma3": {"mm_tokens_per_image": 4},
    "shieldgemma2": {"mm_tokens_per_image": 4},
    "nemotron": {"num_key_value_heads": 2},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "reformer": {"is_decoder": True},
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"attention_head_dim": 32},
    "youtu": {},
    "dots1": {"num_experts_per_tok": 2},
    "axk1": {},
    "step3p7": {},
    "video_llama_3": {},
    **{
        kind: {"is_decoder": True}
        for kind in (
            "bert",
            "bert-generation",
            "big_bird",
            "camembert",
            "data2vec-text",
            "electra",
            "ernie",
            "megatron-bert",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "roc_bert",
            "roformer",
            "xlm-roberta",
            "xlm-roberta-xl",
            "xmod",
        )
    },
}


def quiet() -> None:
    warnings.filterwarnings("ignore")
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    logging.getLogger("transformers").setLevel(logging.CRITICAL)


def families() -> dict[str, str]:
    """Return the class of each model type that has a causal LM or image-text-to-text class."""
    from transformers.models.auto import modeling_auto as auto

    found = dict(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    found.update(auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    return {k: v if isinstance(v, str) else v[0] for k, v in sorted(found.items())}


def shrunk(given: dict[str, Any], full: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration's dict with small sizes."""
    made = dict(given)
    depth = next((given[n] for n in DEPTHS if isinstance(given.get(n), int)), 0)
    lists = [v for v in given.values() if isinstance(v, list) and len(v) == depth > 0]
    kinds = [tuple(map(str, each)) for each in zip(*lists, strict=True)] or ["layer"] * depth
    kept = [p for p, kind in enumerate(kinds) if kinds.index(kind) == p][:4]
    kept = sorted({*kept, *range(min(2, depth))})
    meaning = 200
    for name, value in given.items():
        if name == "per_layer_config":
            made[name] = None
        elif isinstance(value, dict):
            made[name] = (
                shrunk(value, full) if ("config" in name or "model_type" in value) else value
            )
        elif isinstance(value, list) and len(value) == depth > 0:
            made[name] = [value[p] for p in kept]
        elif name in DEPTHS and isinstance(value, int):
            made[name] = len(kept)
        elif name in KV and isinstance(value, int):
            made[name] = (
                1 if value == 1 else 2 if value < (given.get("num_attention_heads") or 0) else 4
            )
        elif SMALL.get(name) is not None and isinstance(value, int) and not isinstance(value, bool):
            made[name] = min(SMALL[name], value) if "expert" in name else SMALL[name]
        elif (
            name.endswith(("_token_id", "_token_index")) and isinstance(value, int) and value >= 200
        ):
            # the same token has the same number everywhere
            made[name] = (
                meaning + sum(map(ord, name.removesuffix("_id").removesuffix("_index"))) % 90
            )
    if "qk_rope_head_dim" in given and isinstance(given.get("head_dim"), int):
        made["head_dim"] = 8
    for name in ("rope_parameters", "rope_scaling"):
        rope = made.get(name)
        if isinstance(rope, dict) and "mrope_section" in rope:
            made[name] = {**rope, "mrope_section": [2, 3, 3]}
    return made


def build(kind: str, **more: Any) -> Any:
    """Return a tiny model of a family."""
    import transformers
    from transformers import CONFIG_MAPPING

    cls = getattr(transformers, families()[kind])
    config_class = cls.config_class or CONFIG_MAPPING[kind]
    full = config_class().to_dict()
    small = shrunk(full, full)
    small = merged(small, OVERRIDES.get(kind, {}))
    for name in ("torch_dtype", "dtype", "architectures", "transformers_version"):
        small.pop(name, None)
    small.pop("model_type", None)
    config = config_class(**small)
    attention = more.pop("attention", None)
    if attention:
        config._attn_implementation = attention
    torch.manual_seed(0)
    made = cls(config)
    return made.float().eval()


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    made = dict(one)
    for name, value in other.items():
        made[name] = merged(made.get(name) or {}, value) if isinstance(value, dict) else value
    return made


def sizes(model: Any) -> int:
    return sum(each.numel() for each in model.parameters())


def each_family() -> Iterator[str]:
    yield from families()
