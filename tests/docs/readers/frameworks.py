"""What a reader of docs/guides/frameworks.md has: data, a model, a language model."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

dataset = [torch.full((3,), float(number)) for number in range(32)]
texts = [{"input_ids": torch.arange(6), "labels": torch.arange(6)} for _ in range(32)]
stack = torch.stack


def new_model() -> torch.nn.Module:
    return torch.nn.Linear(3, 1)


def new_language_model() -> Any:
    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


model, language_model = new_model(), new_language_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
