"""Datasets and samplers of the uses, with a few numbers each."""

import collections
import os
import signal
import threading
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

Pair = collections.namedtuple("Pair", ["image", "label"])
CONTENT = b"0123456789"


class Numbers(Dataset):
    """0, 1, 2, ... as tensors, plus `offset`; the sample at `broken` raises."""

    def __init__(self, count: int = 10, broken: int = -1) -> None:
        self.count, self.broken = count, broken
        self.offset = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index == self.broken:
            raise ValueError(f"sample {index} is broken")
        return torch.tensor(index + self.offset)


class Made(Dataset):
    """Samples that a function makes of their index."""

    def __init__(self, make: Any, count: int = 4) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class InFile(Dataset):
    """Bytes of a file that the trainer has opened."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(CONTENT)
        self.file = path.open("rb")

    def __len__(self) -> int:
        return len(CONTENT)

    def __getitem__(self, index: int) -> int:
        self.file.seek(index)
        return self.file.read(1)[0]


class Slow(Dataset):
    """Takes a second for each sample."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return threading.Event().wait(1.0)


class Deadly(Dataset):
    """Its last sample kills the process that reads it."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


class Stream(IterableDataset):
    """Each worker yields its share of the numbers below `count`."""

    def __init__(self, count: int = 10) -> None:
        self.count = count

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, self.count, step)


class Odd(Sampler[int]):
    """Seven of ten indices, backwards."""

    def __iter__(self) -> Any:
        return iter([9, 8, 6, 5, 3, 2, 0])

    def __len__(self) -> int:
        return 7


class Parcel:
    """What a collate function may return: no tensor and no container of Python's."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parcel) and other.samples == self.samples

    __hash__ = None  # type: ignore[assignment]


def worker_seen(_: int) -> tuple[int, int, int]:
    """Return the worker's id, the number of workers and the process id, as the worker sees them."""
    info: Any = get_worker_info()
    return (-1, 0, 0) if info is None else (info.id, info.num_workers, os.getpid())
