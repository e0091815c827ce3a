"""What a reader of the skill's page of own loops has: data, a sampler, a model as DDP has it."""

from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DistributedSampler
from transformers import LlamaConfig, LlamaForCausalLM

lengths = [4 + 37 * number % 60 for number in range(64)]
texts = [torch.arange(length) % 15 + 1 for length in lengths]
dataset: Any = [{"input_ids": ids, "labels": ids} for ids in texts]
sampler = DistributedSampler(dataset, num_replicas=1, rank=0)


def pad(samples: list[Any]) -> dict[str, torch.Tensor]:
    rows = [sample["input_ids"] for sample in samples]
    labels = [sample["labels"] for sample in samples]
    ids = pad_sequence(rows, batch_first=True)
    return {
        "input_ids": ids, "attention_mask": (ids > 0).long(),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
    }  # fmt: skip


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16)

    def forward(self, batch: Any) -> Any:
        return self.head(self.embed(batch["input_ids"]))

    def no_sync(self) -> Any:  # of DDP
        return nullcontext()


language_model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2,
    )
)  # fmt: skip
model = ddp = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
__all__ = ["cross_entropy"]
