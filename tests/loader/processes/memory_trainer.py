"""A trainer for test_memory: takes one batch and sleeps; also the transform its workers run.

python memory_trainer.py here | ADDRESS. It prints "open" when all processes have worked through an
epoch, "asleep" when it has a batch of the next, and goes on at each line that it reads.
"""

import sys
from typing import Any

import numpy as np

from counterpoise import Ranks
from counterpoise.loader import Balance, DataLoader, RemoteDataset
from counterpoise.workers.sources.interface import Probe

MIB = 1 << 20
SAMPLE_BYTES, BUDGET_BYTES = 3 * MIB, 96 * MIB
COUNT = 192


def pixels(index):
    return {"pixels": np.full(SAMPLE_BYTES, index % 251, np.uint8)}


def tokens(_):
    return {"tokens": 1}


class Samples:
    """Samples that are nothing before they are decoded."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return pixels(index)


class Inflate:
    """The same, made of whatever a tar holds."""

    def probe(self, raw):
        return Probe(raw["__key__"], {"tiles": 0, "tokens": 1, "label_tokens": 1}, None)

    def __call__(self, raw):
        return pixels(len(raw))


def make(address):
    """Return a loader whose prefetch alone would fill its byte budget."""
    balance = Balance(grouping="fixed", samples_per_step=16, accumulate=2)
    given: dict[str, Any] = {"batch_size": 4, "balance": balance}
    given |= {"ranks": Ranks(virtual=2), "prefetch_factor": 4, "buffer_bytes": BUDGET_BYTES}
    given |= {"shuffle": True, "collate_fn": list, "num_workers": 2}
    if address == "here":
        return DataLoader(Samples(), cost=tokens, persistent_workers=True, **given)
    return DataLoader(RemoteDataset("*.tar", "memory_trainer:Inflate"), balancer=address, **given)


def main(address):
    loader = make(address)
    for _ in loader:
        pass
    print("open", flush=True)
    sys.stdin.readline()
    batch = next(iter(loader))
    print("asleep", flush=True)
    sys.stdin.readline()
    loader.close()
    return batch


if __name__ == "__main__":
    main(sys.argv[1])
