"""Deterministic datasets and collate functions. Imported by name, here and in worker processes."""

import collections

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

Pair = collections.namedtuple("Pair", ["image", "label"])

KINDS = {
    "tensor": lambda i: torch.arange(3) * i, "scalar": lambda i: torch.tensor(i / 7),
    "bfloat16": lambda i: torch.full((2, 2), i, dtype=torch.bfloat16),
    "transposed": lambda i: torch.arange(6).view(2, 3).t() + i,
    "array": lambda i: np.arange(4, dtype=np.float32) + i, "integer": lambda i: i,
    "float": lambda i: i / 3, "text": lambda i: f"sample {i}",
    "dict": lambda i: {"image": torch.ones(2, 2) * i, "label": i, "key": str(i)},
    "arrays": lambda i: {"image": np.full((3, 2), i, np.uint8), "label": i},
    "tuple": lambda i: (torch.tensor([i]), i, f"{i}"),
    "named": lambda i: Pair(torch.tensor([i, -i]), i % 3),
    "nested": lambda i: [{"a": (torch.zeros(1, 2) + i, [i, str(i)])}, Pair(i, 0.5)],
}  # fmt: skip


class Samples(Dataset):
    """Samples of one kind; the one at `broken` raises."""

    def __init__(self, count, kind, broken=-1):
        self.count, self.kind, self.broken = count, kind, broken

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        index = int(index)
        if index == self.broken:
            raise ValueError(f"sample {index} is broken")
        return KINDS[self.kind](index)


class Noise(Dataset):
    """Samples drawn from the generators of the process, and who drew them."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        info = get_worker_info()
        who = (-1, 0, 0) if info is None else (info.id, info.num_workers, info.seed)
        return index, torch.rand(3), np.random.rand(2), torch.tensor(who)


class Stream(IterableDataset):
    """Worker w yields `lengths[w]` numbers; those of the last are `broken` at one place."""

    def __init__(self, lengths, broken=-1):
        self.lengths, self.broken = lengths, broken

    def __iter__(self):
        info = get_worker_info()
        worker = 0 if info is None else info.id
        for i in range(self.lengths[worker]):
            if i == self.broken:
                raise KeyError("broken")
            yield torch.tensor([worker, i])


class Odd(Sampler):
    """The odd indices, backwards."""

    def __init__(self, dataset):
        self.indices = list(range(1, len(dataset), 2))[::-1]

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)


class Stumbling(Sampler):
    """Raises after some indices."""

    def __init__(self, dataset, after):
        self.count = min(after, len(dataset))

    def __iter__(self):
        yield from range(self.count)
        raise RuntimeError("the sampler stumbled")

    def __len__(self):
        return self.count


def as_list(samples):
    return list(samples)


def count_and_first(samples):
    return {"count": len(samples), "first": samples[0]}


def refuse_multiples_of_five(samples):
    if len(samples) % 5 == 0:
        raise TypeError(f"{len(samples)} samples are too many")
    return torch.utils.data.default_collate(samples)


class Gated(Dataset):
    """Its first sample comes when the gate is opened."""

    def __init__(self, count):
        self.count, self.gate = count, torch.multiprocessing.get_context("fork").Event()

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == 0:
            self.gate.wait()
        return index


def seed_by_number(worker):
    torch.manual_seed(worker)
    np.random.seed(worker)
