"""A dataset with costs, augmentation and uneven speed. Imported by name, here and in workers."""

import hashlib
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterpoise.workers.sources.interface import Probe, SampleError
from counterpoise.workers.sources.labels import count_label_tokens

RESOURCES = ("tiles", "tokens", "label_tokens")


class Augmented:
    """Samples of skewed sizes; what is drawn depends on the global generators alone."""

    def __init__(self, count, broken=(), unreadable=()):
        self.count = count
        self.broken = frozenset(broken)
        self.unreadable = frozenset(unreadable)
        self.loaded = 0

    def __len__(self):
        return self.count

    def key(self, index):
        return f"k{index:04}"

    def sizes(self, index):
        return index * 7919 % 5, 3 + index * 104729 % 40

    def labels(self, index):
        tokens = self.sizes(index)[1]
        labels = np.arange(tokens, dtype=np.int32) + index
        labels[: 1 + index % tokens] = -100
        return labels

    def probe(self, index):
        if index in self.broken:
            raise SampleError(self.key(index), "its header is broken")
        tiles, tokens = self.sizes(index)
        labels = count_label_tokens(self.labels(index))
        return Probe(
            self.key(index), {"tiles": tiles, "tokens": tokens, "label_tokens": labels}, None
        )

    def __getitem__(self, index):
        if index in self.broken | self.unreadable:
            raise SampleError(self.key(index), "it does not decode")
        work_a_little()
        self.loaded += 1
        tiles, tokens = self.sizes(index)
        return {
            "input_ids": np.arange(tokens, dtype=np.int32) + index,
            "labels": self.labels(index),
            "pixel_values": np.random.randint(0, 256, (tiles, 3, 2, 2), np.uint8),
            "tiles_per_image": np.ones(tiles, np.int32),
            "noise": random.random() + float(torch.rand(())),
            "name": self.key(index),
        }


class Measured(Augmented):
    """The same samples, which have to be decoded to be measured."""

    probe: Any = None


class Deadly:
    """A dataset whose sample 3 kills the process that loads it."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 3:
            os._exit(9)
        return {"input_ids": np.arange(index + 1)}


def measure(sample):
    """Return the costs of a decoded sample."""
    return {
        "tiles": len(sample["pixel_values"]),
        "tokens": len(sample["input_ids"]),
        "label_tokens": count_label_tokens(sample["labels"]),
    }


def work_a_little():
    """Take a time that nothing can predict: some counting, as the system's randomness says."""
    for _ in range(os.urandom(1)[0] * 8):
        pass


def as_list(samples):
    """Collate nothing."""
    return samples


def digest(value):
    """Return a hash of all bytes in a batch."""
    hasher = hashlib.sha256()
    _feed(hasher, value)
    return hasher.hexdigest()


def _feed(hasher, value):
    if isinstance(value, dict):
        for name in sorted(value):
            hasher.update(name.encode())
            _feed(hasher, value[name])
    elif isinstance(value, list | tuple):
        for each in value:
            _feed(hasher, each)
    elif isinstance(value, torch.Tensor | np.ndarray):
        array = np.asarray(value)
        hasher.update(f"{array.dtype}{array.shape}".encode())
        hasher.update(np.ascontiguousarray(array).tobytes())
    else:
        hasher.update(repr(value).encode())


class Waiting(Augmented):
    """Samples of which the one at `at` waits until a file is there."""

    def __init__(self, count, at, path):
        super().__init__(count)
        self.at, self.path = at, path

    def __getitem__(self, index):
        bell = threading.Event()
        while index == self.at and not Path(self.path).exists():
            bell.wait(0.02)
        return super().__getitem__(index)
