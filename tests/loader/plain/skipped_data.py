"""Streams and datasets with samples that cannot be used. Imported by name, here and in workers."""

import errno

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from counterpoise.workers.sources.interface import SampleError


def bad(number):
    return SampleError(f"k{number}", "cut")


class Numbers:
    """An iterator with `__next__`, which can go on after it has raised."""

    def __init__(self, numbers, broken):
        self.numbers, self.broken = iter(numbers), broken

    def __iter__(self):
        return self

    def __next__(self):
        number = next(self.numbers)
        if number in self.broken:
            raise bad(number)
        return torch.tensor(number)


class Stream(IterableDataset):
    """0 to count - 1, dealt out to the workers; how it tells the broken ones is `how`."""

    def __init__(self, count, broken, how="yield"):
        self.count, self.broken, self.how = count, frozenset(broken), how

    def __iter__(self):
        info = get_worker_info()
        first, by = (info.id, info.num_workers) if info else (0, 1)
        numbers = range(first, self.count, by)
        if self.how == "raise in __next__":
            return Numbers(numbers, self.broken)
        if self.how == "raise in a part":
            return Checking(numbers, self.broken)
        if self.how == "raise below a map":
            return map(int, self._generate(numbers, "raise"))
        return self._generate(numbers, self.how)

    def _generate(self, numbers, how):
        for number in numbers:
            if number not in self.broken:
                yield torch.tensor(number)
            elif how == "yield":
                yield bad(number)
            else:
                raise bad(number)


class Checking(Numbers):
    """Raises out of a generator that is not the stream."""

    def __next__(self):
        number = next(self.numbers)
        return torch.tensor(sum(self._check(number) for _ in range(1)))

    def _check(self, number):
        if number in self.broken:
            raise bad(number)
        return number


class Mapped(Dataset):
    """0 to count - 1; broken ones raise or are given as errors, `disk` ones lie on a bad disk."""

    def __init__(self, count, broken, disk=(), together=False):
        self.count, self.broken, self.disk = count, frozenset(broken), frozenset(disk)
        self.asked = []
        if together:
            self.__getitems__ = self._together

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        index = int(index)
        self.asked.append(index)
        if index in self.disk:
            raise OSError(errno.EIO, "Input/output error")
        if index in self.broken:
            if index % 2:
                return bad(index)
            raise KeyError("label")
        return torch.tensor(index)

    def _together(self, indices):
        return [self[index] for index in indices]


class Endless(IterableDataset):
    """Nothing of it can be used."""

    def __iter__(self):
        number = 0
        while True:
            yield bad(number)
            number += 1
