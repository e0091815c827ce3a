"""Data sets and collate functions for `balance="auto"`; imported by name, here and in workers."""

import os
import random
from itertools import chain
from typing import Any

import numpy as np
import torch

from counterpoise.loader import DataLoader
from counterpoise.workers.sources.interface import Probe, SampleError


class Texts:
    """Token ids of skewed lengths; `equal`: all of one length."""

    def __init__(self, count: int, equal: bool = False, labels: bool = True) -> None:
        self.count, self.equal, self.labels = count, equal, labels

    def __len__(self) -> int:
        return self.count

    def length(self, index: int) -> int:
        return 7 if self.equal else 1 + int(np.random.RandomState(index).lognormal(3, 0.8))

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = np.arange(self.length(index)) + 100 * index
        number = {"number": index}
        return {"input_ids": ids, **({"labels": ids} if self.labels else {}), **number}


class Probed(Texts):
    """The same texts, with `probe`; `loaded` says whether one was decoded here."""

    def probe(self, index: int) -> Probe:
        return Probe(str(index), {"tokens": self.length(index)}, None)


class Changed(Texts):
    """Other lengths than Texts', under the same name in ledgers: the data were changed."""

    __qualname__ = "Texts"

    def length(self, index: int) -> int:  # noqa: ARG002
        return 3


class Giant(Texts):
    """A sample longer than all others together."""

    def length(self, index: int) -> int:
        return 5000 if index == 3 else super().length(index)


class Broken(Texts):
    """No sample can be read."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        raise KeyError(f"no row {index}")


class SomeBroken(Texts):
    """Every third sample cannot be read."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index % 3 == 0:
            raise SampleError(str(index), "it is torn")
        return super().__getitem__(index)


class Drawing(Texts):
    """Samples that draw from the global generators, where they are loaded."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        drawn = random.random(), np.random.random(), float(torch.rand(()))
        return {**super().__getitem__(index), "noise": sum(drawn)}


def pad(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Fill up to the longest."""
    longest = max(len(each["input_ids"]) for each in samples)

    def rows(name: str) -> torch.Tensor:
        filled = [np.pad(each[name], (0, longest - len(each[name]))) for each in samples]
        return torch.as_tensor(np.stack(filled))

    names = [name for name in ("input_ids", "labels") if name in samples[0]]
    numbers = [each["number"] for each in samples]
    return {name: rows(name) for name in names} | {"number": numbers}


def join(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Put one after the other."""
    joined = np.concatenate([each["input_ids"] for each in samples])
    return {"input_ids": torch.as_tensor(joined), "number": [each["number"] for each in samples]}


def pad_noisily(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Print, and draw."""
    print("collating")
    random.random()
    torch.rand(3)
    return pad(samples)


def fail(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Raise."""
    raise TypeError(f"cannot stack {len(samples)}")


def die(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """End the process."""
    os._exit(9)


def flat(batches: list[list[int]]) -> list[int]:
    """Return the samples of batches, one after the other."""
    return list(chain.from_iterable(batches))


class Pictures(Texts):
    """Pictures of heights and widths that have nothing to do with each other."""

    def __getitem__(self, index: int) -> Any:
        high, wide = (8 + index * step % 57 for step in (7, 23))
        return torch.zeros(3, high, wide)


def pad_both(samples: list[Any]) -> Any:
    """Stack pictures, filled up to the highest and to the widest."""
    high, wide = (max(each.shape[axis] for each in samples) for axis in (1, 2))
    return torch.zeros(len(samples), 3, high, wide)


def lengths(count: int) -> list[int]:
    """Return the lengths of Texts, as a table has them."""
    return [Texts(count).length(index) for index in range(count)]


class Words(Texts):
    """The same as texts of words, a token each."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"text": "words " * (12 + self.length(index))}


def pad_words(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a token of each word, and fill up to the longest."""
    longest = max(each["text"].count(" ") for each in samples)
    return {"input_ids": torch.zeros(len(samples), longest, dtype=torch.long)}


class Rows(Texts):
    """Sound of different lengths, and its class."""

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(self.length(index)), index % 3


def pad_rows(samples: list[Any]) -> Any:
    """Fill up to the longest."""
    rows = torch.nn.utils.rnn.pad_sequence([each for each, _ in samples], batch_first=True)
    return rows, torch.tensor([kind for _, kind in samples])


def make(dataset: Any, **changes: Any) -> DataLoader:
    """A loader with balance="auto" of padded batches of 8."""
    given: dict[str, Any] = {"batch_size": 8, "shuffle": True, "balance": "auto"}
    return DataLoader(dataset, **{**given, "collate_fn": pad, **changes})


def numbers(loader: DataLoader) -> list[list[int]]:
    """The samples of each microbatch."""
    return [list(batch["number"]) for batch in loader]
