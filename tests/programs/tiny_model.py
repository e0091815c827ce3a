"""A tiny model with random weights, its tokenizer, and conversations of unlike lengths."""

import json
import random
from pathlib import Path
from typing import Any

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = ["a", "cat", "saw", "two", "red", "birds", "over", "the", "old", "mill", "rain", "fell"]


def train_tokenizer(vocabulary: int = 512) -> Any:
    """Return a tokenizer of the package tokenizers: bytes, and merges of a few words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw: Any = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 12, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    raw.train_from_iterator([" ".join(WORDS), "user assistant system row"] * 4, trainer)
    return raw


def write_model(folder: Path, *, vocabulary: int = 512) -> None:
    """Write config, weights (float32, seed 0) and tokenizer of a small Qwen2 to a folder."""
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(vocabulary),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )  # fmt: skip
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)


def conversations(count: int, seed: int, first: int = 0) -> list[list[dict[str, str]]]:
    """Return conversations of 2 to 400 words with a long tail; each begins with its number."""
    draw = random.Random(seed)

    def text(words: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(words))

    return [
        [
            {"role": "user", "content": f"row {number:05d}: {text(5)}"},
            {
                "role": "assistant",
                "content": text(min(400, int(draw.lognormvariate(3.2, 1.1)) + 2)),
            },
        ]
        for number in range(first, first + count)
    ]


def write_conversations(path: Path, count: int, seed: int, first: int = 0) -> None:
    """Write conversations as JSON lines {"messages": [...]}."""
    rows = [json.dumps({"messages": messages}) for messages in conversations(count, seed, first)]
    path.write_text("\n".join(rows) + "\n")
