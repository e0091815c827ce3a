"""A language model of a few weights, samples of different lengths, and what a step consists of."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

import counterpoise as cp

SAMPLES = 96
VOCABULARY = 32
# Loaders stay until all ranks have ended a case: one of them may run the others' balancer.
KEPT: list[Any] = []


class Texts(Dataset[dict[str, Any]]):
    """`count` samples of 3 to 18 tokens; a sample's number is its first two tokens."""

    def __init__(self, count: int = SAMPLES) -> None:
        self.count = count
        self.lengths = [3 + (7 * n + n * n) % 16 for n in range(count)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        numbers = torch.Generator().manual_seed(index)
        ids = torch.randint(0, VOCABULARY, (self.lengths[index],), generator=numbers)
        ids[0], ids[1] = index // VOCABULARY, index % VOCABULARY
        return {"input_ids": ids}


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Return padded input_ids and labels, -100 where there is no sample; no sample is no row."""
    longest = max((len(sample["input_ids"]) for sample in samples), default=2)
    ids = torch.zeros(len(samples), longest, dtype=torch.int64)
    labels = torch.full_like(ids, -100)
    for row, sample in enumerate(samples):
        size = len(sample["input_ids"])
        ids[row, :size] = labels[row, :size] = sample["input_ids"]
    return {"input_ids": ids, "labels": labels}


def numbers_of(batch: dict[str, torch.Tensor]) -> list[int]:
    """Return which samples are in a batch."""
    return (batch["input_ids"][:, 0] * VOCABULARY + batch["input_ids"][:, 1]).tolist()


def cost(sample: dict[str, Any]) -> dict[str, int]:
    """Return what a sample costs: its tokens."""
    return {"tokens": len(sample["input_ids"])}


def balanced(accumulate: Any = 1, count: int = SAMPLES, step: int = 24, **named: Any) -> Any:
    """Return a balanced loader with steps of `step` samples over all ranks."""
    balance = cp.Balance(
        "balanced", budgets={"tokens": 400}, samples_per_step=step, accumulate=accumulate, seed=5,
    )  # fmt: skip
    given = {"balance": balance, "cost": cost, "shuffle": True, **named}
    loader = cp.DataLoader(Texts(count), collate_fn=collate, **given)
    KEPT.append(loader)
    return loader


def plain(count: int = SAMPLES, batch_size: int = 4, **named: Any) -> Any:
    """Return a loader without balance."""
    return cp.DataLoader(Texts(count), batch_size=batch_size, collate_fn=collate, **named)


class TinyModel(torch.nn.Module):
    """Predicts the next token from this one, over an embedding of 4 numbers."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.embedding = torch.nn.Embedding(VOCABULARY, 4, dtype=dtype)
        self.output = torch.nn.Linear(4, VOCABULARY, dtype=dtype)

    def loss_sum(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the sum of the label tokens' losses."""
        logits = self.output(self.embedding(batch["input_ids"]))[:, :-1]
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum"
        )

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        return self.loss_sum(batch)


def error_of(call: Callable[[], Any]) -> str:
    """Return the error that a call raises, in words; "" for none."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
