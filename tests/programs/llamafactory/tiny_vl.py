"""A tiny Qwen2.5-VL with random weights, its processor, and conversations about 1 to 3 pictures."""

import json
import random
from pathlib import Path

import torch
from PIL import Image
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from tests.programs.tiny_model import CHATML, conversations, train_tokenizer

PICTURES = 20
TOKENS = {
    "vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>",
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
}  # fmt: skip


def write_processor(folder: Path) -> dict[str, int]:
    """Write the processor; return the numbers of its tokens."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(), eos_token="<|im_end|>", pad_token="<|endoftext|>",
        extra_special_tokens=TOKENS,
    )  # fmt: skip
    sizes = {"shortest_edge": 56 * 56, "longest_edge": 224 * 224}
    processor = Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(size=sizes), tokenizer, Qwen2VLVideoProcessor(), chat_template=CHATML
    )
    processor.save_pretrained(folder)
    return {f"{name}_id": tokenizer.convert_tokens_to_ids(text) for name, text in TOKENS.items()}


def write_vl_model(folder: Path) -> None:
    """Write a Qwen2.5-VL of two layers and two layers of vision, and its processor."""
    numbers = write_processor(folder)
    text = {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        "rope_scaling": {
            "type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4
        },
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
        "out_hidden_size": 64, "window_size": 112, "fullatt_block_indexes": [1],
    }  # fmt: skip
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **numbers)
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)


def write_vl_data(folder: Path, samples: int) -> None:
    """Write the model, pictures of many sizes, and rows {"messages": ..., "images": ...}."""
    write_vl_model(folder / "model")
    draw = random.Random(3)
    for number in range(PICTURES):
        size = (draw.randrange(56, 300), draw.randrange(56, 300))
        Image.effect_noise(size, 60).convert("RGB").save(folder / f"{number}.png")
    for name, count, seed, first in (("train", samples, 1, 0), ("eval", 20, 2, 90_000)):
        lines = []
        for messages in conversations(count, seed, first):
            images = [f"{draw.randrange(PICTURES)}.png" for _ in range(draw.choice([1, 1, 2, 3]))]
            messages[0]["content"] = "<image>" * len(images) + messages[0]["content"]
            lines.append(json.dumps({"messages": messages, "images": images}) + "\n")
        (folder / f"{name}-vl.jsonl").write_text("".join(lines))
