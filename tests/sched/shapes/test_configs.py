"""Models from config.json have exactly the parameters of transformers' own, on the meta device."""

from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from counterpoise.sched.shapes import read_config

SMALL = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 300, "head_dim": 16,
}  # fmt: skip
TOWER = {
    "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 56, "patch_size": 14,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
LATENT = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
}  # fmt: skip
QWEN_TOWER = {
    "depth": 2, "num_heads": 4, "hidden_size": 48, "intermediate_size": 96, "out_hidden_size": 64,
}  # fmt: skip
LLAMA3 = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SMALL),
    "llama3-8b": ("LlamaConfig", LLAMA3),
    "llama with biases": ("LlamaConfig", SMALL | {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("LlamaConfig", SMALL | {"tie_word_embeddings": True}),
    "mistral": ("MistralConfig", SMALL),
    "mistral-7b": ("MistralConfig", {}),
    "phi3": ("Phi3Config", SMALL | {"pad_token_id": 0}),
    "mixtral": ("MixtralConfig", SMALL | {"num_local_experts": 4}),
    "qwen2": ("Qwen2Config", SMALL),
    "qwen3": ("Qwen3Config", SMALL),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        SMALL | EXPERTS | {"shared_expert_intermediate_size": 56, "decoder_sparse_step": 2},
    ),
    "qwen3_moe": ("Qwen3MoeConfig", SMALL | EXPERTS | {"mlp_only_layers": [0]}),
    "gemma": ("GemmaConfig", SMALL),
    "gemma2": ("Gemma2Config", SMALL),
    "gemma3": ("Gemma3TextConfig", SMALL),
    "deepseek_v2": ("DeepseekV2Config", SMALL | LATENT),
    "deepseek_v2, whole queries": ("DeepseekV2Config", SMALL | LATENT | {"q_lora_rank": None}),
    "deepseek_v3": ("DeepseekV3Config", SMALL | LATENT),
}
AUDIO = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 80, "vocab_size": 300, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "pad_token_id": 0,
}  # fmt: skip
OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "clip": ("CLIPVisionConfig", "CLIPVisionModel", TOWER),
    "siglip": ("SiglipVisionConfig", "SiglipVisionModel", TOWER),
    "vit": ("ViTConfig", "ViTModel", TOWER),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration", AUDIO),
    "llava": (
        "LlavaConfig",
        "LlavaForConditionalGeneration",
        {
            "text_config": {"model_type": "llama"} | SMALL,
            "vision_config": {"model_type": "clip_vision_model"} | TOWER,
        },
    ),
    "llava with siglip": (
        "LlavaConfig",
        "LlavaForConditionalGeneration",
        {
            "text_config": {"model_type": "qwen2"} | SMALL,
            "vision_config": {"model_type": "siglip_vision_model", "vision_use_head": False}
            | TOWER,
        },
    ),
    "internvl": (
        "InternVLConfig",
        "InternVLForConditionalGeneration",
        {
            "text_config": {"model_type": "qwen2"} | SMALL,
            "vision_config": {"attention_bias": True, "use_qk_norm": True} | TOWER,
        },
    ),
    "gemma3 vl": (
        "Gemma3Config", "Gemma3ForConditionalGeneration",
        {"text_config": SMALL, "vision_config": TOWER, "mm_tokens_per_image": 4},
    ),
    "qwen2_vl": (
        "Qwen2VLConfig",
        "Qwen2VLForConditionalGeneration",
        {
            "text_config": SMALL,
            "vision_config": {"depth": 2, "num_heads": 4, "embed_dim": 48, "hidden_size": 64},
        },
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration",
        {"text_config": SMALL, "vision_config": QWEN_TOWER},
    ),
    "qwen3_vl": (
        "Qwen3VLConfig", "Qwen3VLForConditionalGeneration",
        {"text_config": SMALL, "vision_config": QWEN_TOWER | {"deepstack_visual_indexes": [0, 1]}},
    ),
    "qwen2_audio": (
        "Qwen2AudioConfig",
        "Qwen2AudioForConditionalGeneration",
        {
            "text_config": {"model_type": "qwen2"} | SMALL,
            "audio_config": {
                "d_model": 64, "encoder_layers": 2, "encoder_ffn_dim": 96,
                "encoder_attention_heads": 4,
            },
        },
    ),
}  # fmt: skip


def count(model: torch.nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_has_the_parameters_of_its_class(name: str) -> None:
    kind, fields = DECODERS[name]
    config = getattr(transformers, kind)(**fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert read_config(config.to_dict()).parameters == count(model)


@pytest.mark.parametrize("name", OTHERS)
def test_encoders_and_whole_models_have_the_parameters_of_their_classes(name: str) -> None:
    kind, made, fields = OTHERS[name]
    config = getattr(transformers, kind)(**fields)
    with torch.device("meta"):
        model = getattr(transformers, made)(config)
    assert read_config(config.to_dict()).parameters == count(model)


# Configs as their repositories have them, with the parameters that those state.
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "llava-1.5-7b": (
        7063427072,
        {
            "model_type": "llava",
            "text_config": {
                "model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096,
            },
            "vision_config": {
                "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
                "model_type": "clip_vision_model", "num_attention_heads": 16,
                "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768,
                "vocab_size": 32000,
            },
            "vocab_size": 32064,
        },
    ),
    "qwen2-vl-7b": (
        8291375616,
        {
            "model_type": "qwen2_vl",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_hidden_layers": 28,
            "num_key_value_heads": 4,
            "tie_word_embeddings": False,
            "vocab_size": 152064,
            "vision_config": {
                "depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3,
                "hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2,
                "spatial_patch_size": 14, "temporal_patch_size": 2,
            },
        },
    ),
    "internvl2-26b": (
        25514186112,
        {
            "model_type": "internvl_chat",
            "downsample_ratio": 0.5,
            "llm_config": {
                "model_type": "internlm2", "hidden_size": 6144, "intermediate_size": 16384,
                "num_hidden_layers": 48, "num_attention_heads": 48, "num_key_value_heads": 8,
                "vocab_size": 92553, "bias": False, "tie_word_embeddings": False,
            },
            "vision_config": {
                "model_type": "intern_vit_6b", "hidden_size": 3200, "intermediate_size": 12800,
                "num_hidden_layers": 45, "num_attention_heads": 25, "image_size": 448,
                "patch_size": 14, "qk_normalization": True, "qkv_bias": False,
                "norm_type": "rms_norm",
            },
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_the_published_parameters(name: str) -> None:
    count, config = PUBLISHED[name]
    assert read_config(config).parameters == count
