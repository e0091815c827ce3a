"""Tiny models that fit the processors of families.py, in float64: two layers of 16 numbers."""

from typing import Any

import torch

TEXT = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "tie_word_embeddings": True, "max_position_embeddings": 4096,
}  # fmt: skip
SEEN = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 7,
}  # fmt: skip


def make_model(family: str, processor: Any) -> Any:
    """Return a tiny model for a processor of that family, in float64, its weights from a seed."""
    torch.manual_seed(0)
    model = _MODELS[family](len(processor.tokenizer), processor)
    return model.double().train()


def _qwen(words: int, processor: Any) -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    size = processor.image_processor.patch_size
    vision = {
        "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": size,
        "out_hidden_size": 16, "window_size": 4 * size, "fullatt_block_indexes": [0],
    }  # fmt: skip
    text = {**TEXT, "vocab_size": words, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2],
    }}  # fmt: skip
    config = Qwen2_5_VLConfig(
        vision_config=vision, text_config=text, image_token_id=processor.image_token_id,
        video_token_id=processor.video_token_id,
        vision_start_token_id=processor.tokenizer.convert_tokens_to_ids("<|vision_start|>"),
    )  # fmt: skip
    return Qwen2_5_VLForConditionalGeneration(config)


def _llava(words: int, processor: Any) -> Any:
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration as Model,
    )

    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**SEEN), text_config=LlamaConfig(**TEXT, vocab_size=words),
        image_token_index=processor.image_token_id, vision_feature_layer=-1,
    )  # fmt: skip
    return Model(config)


def _gemma3(words: int, processor: Any) -> Any:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, SiglipVisionConfig

    text = {**TEXT, "vocab_size": words, "head_dim": 8, "sliding_window": 512}
    convert = processor.tokenizer.convert_tokens_to_ids
    config = Gemma3Config(
        text_config=text, vision_config=SiglipVisionConfig(**SEEN, vision_use_head=False),
        mm_tokens_per_image=4, image_token_index=convert("<image_soft_token>"),
        boi_token_index=convert("<start_of_image>"), eoi_token_index=convert("<end_of_image>"),
    )  # fmt: skip
    return Gemma3ForConditionalGeneration(config)


def _internvl(words: int, processor: Any) -> Any:
    from transformers import InternVLConfig, InternVLForConditionalGeneration, Qwen2Config

    vision = {**SEEN, "image_size": [28, 28], "patch_size": [7, 7]}
    config = InternVLConfig(
        vision_config=vision, text_config=Qwen2Config(**TEXT, vocab_size=words),
        image_token_id=processor.image_token_id, image_seq_length=4,
    )  # fmt: skip
    return InternVLForConditionalGeneration(config)


def _idefics3(words: int, processor: Any) -> Any:
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, LlamaConfig

    config = Idefics3Config(
        vision_config=SEEN, text_config=LlamaConfig(**TEXT, vocab_size=words, pad_token_id=0),
        image_token_id=processor.image_token_id, scale_factor=2, pad_token_id=0,
    )  # fmt: skip
    return Idefics3ForConditionalGeneration(config)


def _qwen2_audio(words: int, processor: Any) -> Any:
    from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration

    maker = processor.feature_extractor
    audio = {
        "num_mel_bins": maker.feature_size, "encoder_layers": 1, "encoder_attention_heads": 2,
        "encoder_ffn_dim": 16, "d_model": 16, "max_source_positions": maker.nb_max_frames // 2,
    }  # fmt: skip
    config = Qwen2AudioConfig(
        audio_config={"model_type": "qwen2_audio_encoder", **audio},
        text_config={"model_type": "qwen2", **TEXT, "vocab_size": words},
        audio_token_index=processor.audio_token_id,
    )  # fmt: skip
    return Qwen2AudioForConditionalGeneration(config)


_MODELS = {
    "qwen2_audio": _qwen2_audio, "qwen2_5_vl": _qwen, "llava": _llava, "gemma3": _gemma3,
    "internvl": _internvl, "idefics3": _idefics3,
}  # fmt: skip
