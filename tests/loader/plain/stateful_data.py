"""Streams, data sets and samplers that have a state of their own, and such that have none."""

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info


def share(lengths):
    """The numbers of this worker: worker w has `lengths[w]` of them."""
    info = get_worker_info()
    worker = 0 if info is None else info.id
    start = sum(lengths[:worker])
    return range(start, start + lengths[worker])


class Bare(IterableDataset):
    """A generator over this worker's numbers, each with noise from the worker's generator."""

    def __init__(self, lengths, noisy=False):
        self.lengths, self.noisy = lengths, noisy

    def __iter__(self):
        for number in share(self.lengths):
            yield torch.tensor([number, int(torch.randint(1000, ())) if self.noisy else 0])


class Counted:
    """An iterator that says where it is, down to the generator it draws from."""

    def __init__(self, numbers, asked):
        self.numbers, self.at, self.asked = numbers, 0, asked

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= len(self.numbers):
            raise StopIteration
        self.at += 1
        self.asked.append(self.at - 1)
        return torch.tensor([self.numbers[self.at - 1], int(torch.randint(1000, ()))])

    def state_dict(self):
        return {"at": self.at, "generator": torch.get_rng_state()}

    def load_state_dict(self, state):
        self.at = state["at"]
        torch.set_rng_state(state["generator"])


class ByIterator(IterableDataset):
    """Only the iterator has a state."""

    def __init__(self, lengths):
        self.lengths, self.asked = lengths, []

    def __iter__(self):
        return Counted(share(self.lengths), self.asked)


class ByDataset(IterableDataset):
    """Only the data set has a state; it counts its epochs."""

    def __init__(self, lengths):
        self.lengths, self.at, self.epoch = lengths, 0, 0

    def __iter__(self):
        numbers = share(self.lengths)
        while self.at < len(numbers):
            self.at += 1
            yield torch.tensor([numbers[self.at - 1], self.epoch])
        self.at = 0
        self.epoch += 1

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at, self.epoch = state["at"], state["epoch"]


class Drawing(Dataset):
    """A map-style data set whose state is the generator that it draws from."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor([index, int(torch.randint(1000, ()))])

    def state_dict(self):
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state):
        torch.set_rng_state(state["generator"])


class Wandering(Sampler):
    """Draws an order that no seed gives again; its state is what is left of it."""

    def __init__(self, count, entropy):
        self.count, self.entropy = count, entropy
        self.left = None

    def __iter__(self):
        if self.left is None:
            generator = torch.Generator().manual_seed(self.entropy)
            self.left = torch.randperm(self.count, generator=generator).tolist()
        while self.left:
            yield self.left.pop(0)
        self.left = None

    def __len__(self):
        return self.count

    def state_dict(self):
        return {"left": list(self.left or [])}

    def load_state_dict(self, state):
        self.left = list(state["left"])


class ListIterator:
    """An iterator over indices with a state; the sampler has none."""

    def __init__(self, left):
        self.left = left

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.left.pop(0)

    def state_dict(self):
        return {"left": list(self.left or [])}

    def load_state_dict(self, state):
        self.left = list(state["left"])


class WanderingIterators(Sampler):
    """The same, by iterators with a state."""

    def __init__(self, count, entropy):
        self.count, self.entropy = count, entropy

    def __len__(self):
        return self.count

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.entropy)
        return ListIterator(torch.randperm(self.count, generator=generator).tolist())
