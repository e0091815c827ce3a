"""Streams, collate functions and loaders. Imported by name, here and in worker processes."""

import os
import signal

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

import counterpoise as cp
from counterpoise.workers.sources.interface import SampleError
from tests.flat_options import NAMES, flat_balance

COUNT = 120
LENGTHS = np.random.default_rng(5).integers(4, 60, COUNT).tolist()


def sample(number):
    ids = torch.full((LENGTHS[number],), number)
    return {"input_ids": ids, "labels": ids}


class Plain(IterableDataset):
    """Shares its samples out between ranks and workers; it has no state."""

    def __init__(self, count=COUNT, rank=0, ranks=1):
        self.count, self.rank, self.ranks = count, rank, ranks

    def share(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return range(self.rank * workers + worker, self.count, self.ranks * workers)

    def __iter__(self):
        for number in self.share():
            yield sample(number)


class Stateful(Plain):
    """Says where it is, and draws noise from a generator of its own."""

    at, epoch = 0, 0

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.generator = torch.Generator().manual_seed(3)
        self.read = []

    def __iter__(self):
        share = self.share()
        while self.at < len(share):
            self.at += 1
            number = share[self.at - 1]
            self.read.append(number)
            noise = torch.randint(1000, (), generator=self.generator)
            yield {**sample(number), "noise": noise}
        self.at = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def state_dict(self):
        return {"at": self.at, "generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.at = state["at"]
        self.generator.set_state(state["generator"])


class Broken(Plain):
    """Some samples cannot be used."""

    def __iter__(self):
        for number in self.share():
            yield SampleError(f"s{number}", "is broken") if number % 10 == 3 else sample(number)


class Deadly(Plain):
    """A sample kills its worker."""

    def __iter__(self):
        for number in self.share():
            if number == COUNT - 10:
                os.kill(os.getpid(), signal.SIGKILL)
            yield sample(number)


class Shows(Plain):
    """Says what get_worker_info() shows."""

    mark = 0

    def __iter__(self):
        for number in self.share():
            info = get_worker_info()
            is_own = info is not None and type(info.dataset) is Shows and info.dataset.mark == 7
            yield {**sample(number), "is_own": int(is_own)}


def mark(_number):
    get_worker_info().dataset.mark = 7


def joined(samples):
    """Collate one after the other; raises for no samples."""
    return {name: torch.cat([each[name] for each in samples]) for name in ("input_ids", "labels")}


BUDGET = 200


def loader(dataset=None, **changes):
    options = {"budgets": {"tokens": BUDGET}, "layout": "packed", "accumulate": 2}
    own = {name: changes.pop(name) for name in [*changes] if name in NAMES}
    stream = Stateful() if dataset is None else dataset
    return cp.DataLoader(stream, balance=flat_balance(**{**options, **own}), **changes)


def numbers(batch):
    return batch["input_ids"][0][batch["cu_seq_lens"][:-1].long()].tolist()


def digest(batch, info):
    tensors = {name: each.tolist() for name, each in batch.items() if torch.is_tensor(each)}
    return info.step, info.microbatch, info.keys, info.step_label_tokens, tensors


def take(own, most=None):
    found = []
    for batch in own:
        found.append(digest(batch, own.step_info))
        if len(found) == most:
            break
    return found
