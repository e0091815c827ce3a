"""A collator that pads texts beside pixels that add up, as LLaMA-Factory's for Qwen-VL does."""

import random
from typing import Any

import pytest
import torch

from counterpoise.workers.discovery import find_costs, recognise_work

PATCHES, MULTIPLE = 196, 8


def make_rows() -> list[dict[str, Any]]:
    """Return tokenized conversations with 1 to 3 pictures, whose tokens are expanded."""
    numbers = random.Random(0)
    rows = []
    for _ in range(64):
        pictures = numbers.randrange(1, 4)
        ids = [5] * (20 + numbers.randrange(60) + PATCHES // 4 * pictures)
        rows.append({"input_ids": ids, "labels": ids, "images": ["a.png"] * pictures})
    return rows


def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
    longest = -(-max(len(sample["input_ids"]) for sample in samples) // MULTIPLE) * MULTIPLE
    rows = [[*sample["input_ids"]] + [0] * longest for sample in samples]
    ids = torch.tensor([row[:longest] for row in rows])
    pictures = sum(len(sample["images"]) for sample in samples)
    return {
        "input_ids": ids, "labels": ids.masked_fill(ids == 0, -100), "attention_mask": ids.ne(0),
        "position_ids": torch.zeros(3, *ids.shape), "rope_deltas": torch.zeros(len(samples), 1),
        "pixel_values": torch.zeros(pictures * PATCHES, 1176),
        "image_grid_thw": torch.ones(pictures, 3),
    }  # fmt: skip


@pytest.mark.parametrize("is_table", [True, False])
def test_the_text_is_padded(is_table: bool) -> None:
    rows = make_rows()
    table = {"tokens": [len(row["input_ids"]) for row in rows]}
    work = recognise_work(table if is_table else find_costs(rows), rows, collate, 5)
    assert work.describe() == "tokens padded to multiples of 8"
