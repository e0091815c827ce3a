"""What a reader of docs/guides/trl.md has: texts, rows, a tokenizer, a language model."""

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

texts = [{"input_ids": torch.arange(6), "labels": torch.arange(6)} for _ in range(32)]
rows = Dataset.from_dict({"input_ids": [[1, 2]], "labels": [[1, 2]]})
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel({f"w{n}": n for n in range(16)}, unk_token="w0")),
    pad_token="w0",
    eos_token="w1",
)
config = LlamaConfig(
    vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
)
model = LlamaForCausalLM(config)
