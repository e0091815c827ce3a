"""Datasets with holes for resuming: map-style, and shards; each notes what it decodes."""

import json
import random

import numpy as np
import torch

from counterpoise.workers import TarDataset
from counterpoise.workers.sources.interface import Probe, SampleError
from tests.loader import balanced_data as made
from tests.tars import write_tar

COUNT = 40
# Samples that cannot be measured, and such that can but do not decode.
BROKEN, UNREADABLE = {4, 23}, {9, 17, 18, 39}
SHARDS = 3


class MapStyle(made.Augmented):
    """Samples by index; `decoded` has the names of those that were decoded here."""

    def __init__(self):
        super().__init__(COUNT, BROKEN, UNREADABLE)
        self.decoded = []

    def __getitem__(self, index):
        self.decoded.append(self.key(index))
        return super().__getitem__(index)


class Rolled:
    """A transform of shards' texts whose augmentation draws from all generators there are."""

    def __init__(self):
        self.decoded = []

    def probe(self, raw):
        """Measure a text."""
        if raw["txt"].startswith("broken"):
            raise SampleError(raw["__key__"], "its header is broken")
        tokens = len(raw["txt"])
        return Probe(raw["__key__"], {"tiles": tokens % 3, "tokens": tokens, "label_tokens": 1}, 64)

    def __call__(self, raw, rng):
        """Make a sample."""
        self.decoded.append(raw["__key__"])
        if raw["txt"].startswith(("broken", "unreadable")):
            raise SampleError(raw["__key__"], "it does not decode")
        return {
            "input_ids": np.frombuffer(raw["txt"].encode(), np.uint8).astype(np.int32),
            "noise": float(rng.random()),
            "name": raw["__key__"],
        }


class GloballyRolled(Rolled):
    """The same with random's, numpy's and torch's own generators."""

    def __call__(self, raw):  # type: ignore[override]
        """Make a sample."""
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return super().__call__(raw, np.random.default_rng(int(noise * 1e6))) | {"more": noise}


def write_shards(folder):
    """Write the samples' texts as tar files."""
    bodies = []
    for index in range(COUNT):
        kind = "broken" * (index in BROKEN) or "unreadable" * (index in UNREADABLE)
        bodies.append((f"{index:04}.txt", (kind + "text " * (1 + index * 7919 % 9)).encode()))
    for shard in range(SHARDS):
        some = bodies[shard * COUNT // SHARDS : (shard + 1) * COUNT // SHARDS]
        write_tar(folder / f"{shard}.tar", some)


def shards(folder, transform=Rolled):
    """Open the shards in a folder; return them, and the list of what they decode."""
    opened = transform()
    return TarDataset(str(folder / "*.tar"), opened, cache=folder), opened.decoded


def through_json(ledger):
    text = json.dumps(ledger)
    assert len(text) < 4096
    return json.loads(text)
