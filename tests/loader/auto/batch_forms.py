"""Generated data sets and the forms that batches of them have, for what `auto` recognises."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

PATCH = 6


@dataclass(frozen=True)
class Drawn:
    """A data set: lengths (n,), patches of each sample, and how batches of it are made.

    extra: special tokens of each row; rows are filled up to a multiple, and cut at `most`.
    """

    lengths: list[int]
    patches: list[list[int]]
    size: int
    ranks: int
    accumulate: int
    extra: int
    multiple: int
    most: int
    has_text: bool

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        length = self.lengths[index]
        paths = [f"{index}/{place}-{count}.png" for place, count in enumerate(self.patches[index])]
        if self.has_text:
            draw = np.random.RandomState(index)
            words = [letters * "w" for letters in draw.randint(1, 9, length).tolist()]
            return {"text": " ".join(words), "images": paths}
        ids = [1] * length
        return {"input_ids": ids, "labels": ids, "images": paths}

    def table(self) -> dict[str, list[int]]:
        """Return what a user counts: tokens without the special ones."""
        return {"tokens": self.lengths}

    def rows(self, samples: list[Any]) -> list[torch.Tensor]:
        """Return the token ids of samples: a token for each word of a text."""
        ids = [s["text"].split() if self.has_text else s["input_ids"] for s in samples]
        return [torch.ones(min(len(row) + self.extra, self.most), dtype=torch.long) for row in ids]

    def padded(self, samples: list[Any]) -> torch.Tensor:
        """Return token ids (samples, longest), zeros behind short ones."""
        ids = pad_sequence(self.rows(samples), batch_first=True)
        filled = -(-ids.shape[1] // self.multiple) * self.multiple
        return torch.nn.functional.pad(ids, (0, filled - ids.shape[1]))

    def joined_patches(self, samples: list[Any]) -> torch.Tensor:
        """Return all patches of the images that are behind the samples' paths."""
        counts = [int(path[:-4].split("-")[1]) for s in samples for path in s["images"]]
        return torch.zeros(sum(counts), PATCH)


@dataclass
class Batch:
    """A batch that is an object."""

    ids: torch.Tensor
    mask: torch.Tensor


def _encoding(ids: torch.Tensor) -> Any:
    from transformers import BatchEncoding

    return BatchEncoding({"input_ids": ids, "attention_mask": (ids > 0).long()})


# By name: what makes a batch, and the token ids (padded or not) that are in one.
Form = tuple[Callable[[Drawn, list[Any]], Any], Callable[[Any], int]]
FORMS: dict[str, Form] = {
    "a dict": (
        lambda data, some: {"input_ids": (ids := data.padded(some)), "attention_mask": ids > 0},
        lambda batch: batch["input_ids"].numel(),
    ),
    "a tuple": (
        lambda data, some: ((ids := data.padded(some))[:, :-1], ids[:, 1:], torch.ones(len(some))),
        lambda batch: batch[0].numel(),
    ),
    "a list of two tensors": (
        lambda data, some: [ids := data.padded(some), ids > 0], lambda batch: batch[0].numel(),
    ),
    "a tensor": (lambda data, some: data.padded(some), lambda batch: batch.numel()),
    "a BatchEncoding": (
        lambda data, some: _encoding(data.padded(some)), lambda batch: batch["input_ids"].numel(),
    ),
    "a dataclass": (
        lambda data, some: Batch(ids := data.padded(some), ids > 0),
        lambda batch: batch.ids.numel(),
    ),
    "a list of tensors": (
        lambda data, some: data.rows(some), lambda batch: sum(map(len, batch)),
    ),
    "a NestedTensor": (
        lambda data, some: torch.nested.nested_tensor(data.rows(some)), lambda batch: batch.numel(),
    ),
    "a jagged NestedTensor": (
        lambda data, some: torch.nested.nested_tensor(data.rows(some), layout=torch.jagged),
        lambda batch: batch.values().numel(),
    ),
    "one row": (
        lambda data, some: {"input_ids": torch.cat(data.rows(some))[None]},
        lambda batch: batch["input_ids"].numel(),
    ),
    "padded ids beside joined patches": (
        lambda data, some: {
            "input_ids": data.padded(some), "pixel_values": (pixels := data.joined_patches(some)),
            "image_grid_thw": torch.tensor([[1, 2, len(pixels) // 2]]),
        },
        lambda batch: batch["input_ids"].numel(),
    ),
    "a tuple of padded ids and joined patches": (
        lambda data, some: (data.joined_patches(some), data.padded(some)),
        lambda batch: batch[1].numel(),
    ),
}  # fmt: skip


def draw(seed: int, has_text: bool) -> Drawn:
    """Return a data set of a few steps, without a rest."""
    rng = np.random.default_rng(seed)
    size, ranks, accumulate = (int(rng.choice(some)) for some in ((2, 3, 4, 8), (2, 4), (1, 2, 3)))
    count = size * ranks * accumulate * max(3, 160 // (size * ranks * accumulate))
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: rng.lognormal(3.4, 0.9, count) + 2,
        lambda: rng.uniform(8, 200, count),
        lambda: np.where(rng.random(count) < 0.8, rng.uniform(10, 40, count), 300),
        lambda: rng.geometric(0.02, count) + 3,
        lambda: np.where(np.arange(count) == 7, 900, rng.uniform(10, 90, count)),
    )
    lengths = np.asarray(kinds[seed % len(kinds)](), int)
    images = [rng.choice([4, 16, 36], rng.integers(0, 4)).tolist() for _ in range(count)]
    if rng.random() < 0.5:  # a text has its images' tokens, too, as in Qwen2-VL
        lengths = lengths + [sum(some) // 4 for some in images]
    most = int(np.quantile(lengths, 0.7)) if rng.random() < 0.3 else 10**6
    return Drawn(
        lengths.tolist(), images, size, ranks, accumulate, int(rng.choice([0, 2])),
        int(rng.choice([1, 1, 8])), most, has_text,
    )  # fmt: skip
