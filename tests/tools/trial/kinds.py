"""Data sets for `counterpoise try`, by name, and what is true of them."""

import threading
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, WeightedRandomSampler

import counterpoise as cp
from tests.loader.auto.auto_data import Broken, Pictures, SomeBroken, Texts, join, pad, pad_both

COUNT = 240


class Locked(Texts):
    """Texts that cannot be pickled."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.lock = threading.Lock()


class Shifted(Texts):
    """Texts whose labels are the next tokens already."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        found = super().__getitem__(index)
        return {**found, "labels": found["labels"] + 1}


class Stream(IterableDataset[Any]):
    """Texts one after the other."""

    def __iter__(self) -> Any:
        return iter([texts[index] for index in range(COUNT)])


class Odd(Texts):
    """Samples that no collate function of ours or torch's makes a batch of."""

    def __getitem__(self, index: int) -> Any:
        return {"words": ["w"] * self.length(index), "thing": object()}


pictures: Any = Pictures(COUNT)
unlabelled: Any = Texts(COUNT, labels=False)
long: Any = Texts(1024)
few: Any = Texts(64)  # all are measured, however short the trial is
texts: Any = Texts(COUNT)
locked: Any = Locked(COUNT)
shifted: Any = Shifted(COUNT)
equal, broken, useless, empty, odd = (
    Texts(COUNT, equal=True), SomeBroken(COUNT), Broken(COUNT), Texts(0), Odd(COUNT),
)  # fmt: skip


class Join:
    """A collate function that is an object."""

    def __call__(self, samples: Any) -> Any:
        return join(samples)


joiner = Join()
join_at_once = lambda samples: join(samples)  # noqa: E731


def make_loader() -> Any:
    """Return the loader of rank 0 of 2."""
    sampler: Any = DistributedSampler(texts, 2, 0, shuffle=False)
    return DataLoader(texts, batch_size=4, sampler=sampler, num_workers=0, collate_fn=join)


def make_loader_of_own_batches() -> Any:
    """Return a loader whose batches are chosen by the user."""
    return DataLoader(texts, batch_sampler=[[0, 1], [2, 3]], collate_fn=join)


def make_weighted_loader() -> Any:
    """Return a loader whose order is drawn."""
    sampler = WeightedRandomSampler([1] * COUNT, COUNT)
    return DataLoader(texts, batch_size=4, sampler=sampler, collate_fn=join)


def make_spawning_loader() -> Any:
    """Return a loader whose workers would start clean, and cannot."""
    return DataLoader(
        locked, batch_size=4, num_workers=1, collate_fn=join, multiprocessing_context="spawn"
    )


def make_loader_of_ready_batches() -> Any:
    """Return a loader whose sampler gives whole batches, as lhotse's do."""
    return DataLoader(texts, batch_size=None, sampler=[[0, 1], [2, 3]])


def make_balanced_loader() -> Any:
    """Return a loader that is balanced already."""
    return cp.DataLoader(texts, batch_size=4, shuffle=True, collate_fn=join, balance="auto")


def pad_ids(samples: list[dict[str, Any]]) -> Any:
    """Return ids alone."""
    return {"input_ids": pad(samples)["input_ids"]}


def pad_to_64(samples: list[dict[str, Any]]) -> Any:
    """Return ids, padded to a multiple of 64."""
    ids = pad_ids(samples)["input_ids"]
    return {"input_ids": torch.nn.functional.pad(ids, (0, -ids.shape[1] % 64))}


def pad_with_new_labels(samples: list[dict[str, Any]]) -> Any:
    """Return ids, and labels that no sample has."""
    ids = pad(samples)["input_ids"]
    return {"input_ids": ids, "labels": ids}


def join_tokens(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Put tokens one after the other."""
    return {"input_ids": torch.as_tensor(np.concatenate([each["input_ids"] for each in samples]))}


def random_waiting(lengths: list[int], ranks: int, size: int) -> float:
    """Return the share of steps of packed batches in random order that ranks wait."""
    work = _in_random_order(lengths, ranks * size).reshape(-1, ranks, size).sum(axis=2)
    return float(1 - work.mean() / work.max(axis=1).mean())


def longest_of(lengths: list[int], size: int) -> float:
    """Return the mean of the longest length of a batch in random order."""
    return float(_in_random_order(lengths, size).max(axis=1).mean())


def _in_random_order(lengths: list[int], width: int) -> Any:
    order = np.random.default_rng(1).permutation(np.tile(lengths, 200))
    return order[: len(order) // width * width].reshape(-1, width)


__all__ = ["join", "pad", "pad_both"]
