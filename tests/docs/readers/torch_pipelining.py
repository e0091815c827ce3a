"""What a reader of docs/from/torch-pipelining.md has: a model, how it is cut, rows of a length."""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo", f"file://{tempfile.mktemp()}", rank=0, world_size=1)
dp = pp = 1
LENGTH, WIDTH, WORDS = 12, 8, 16
rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, WORDS, (32, LENGTH))]


class Stage(nn.Module):
    """Some layers, with the embedding in front of the first and the head behind the last."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.words: nn.Module | None = None
        self.head: nn.Module | None = None

    def forward(self, x: Any) -> Any:
        x = self.layers(x if self.words is None else self.words(x))
        return x if self.head is None else self.head(x)


model = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]


def cut(model: list[nn.Module], stages: int) -> list[Stage]:
    made = [Stage(model[s::stages]) for s in range(stages)]
    made[0].words, made[-1].head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
    return made
