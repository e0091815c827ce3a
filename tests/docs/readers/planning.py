"""What a reader of planning.md has: a data set and its costs, conversations and a model."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_COUNT = 564
_random = np.random.default_rng(0)
tiles = _random.integers(0, 6, _COUNT)
tokens = 200 + 256 * tiles
costs = np.stack([tiles, tokens], axis=1)
dataset = list(range(_COUNT))


def _conversation(number: int) -> dict[str, Any]:
    ids = np.arange(3 + number % 5)
    pixels = np.full((number % 3, 3, 28, 28), number, np.uint8)
    return {
        "input_ids": ids,
        "labels": ids,
        "pixel_values": pixels,
        "tiles_per_image": np.array([len(pixels)] if len(pixels) else [], np.int32),
    }


conversations = [_conversation(number) for number in range(64)]
encoder, head = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 4)), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)


def language_model(_: dict[str, Tensor], features: Tensor) -> Tensor:
    loss: Tensor = head(features).sum() + 0 * head.bias.sum()
    return loss
