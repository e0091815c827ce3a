"""A trainer for test_kill: trains without end, alone or forked anew for every line it reads."""

import os
import sys

import numpy as np


class Samples:
    """Small samples of uneven size."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"input_ids": np.arange(1 + index % 7), "pixels": np.zeros((index % 5, 3000))}


def tokens(sample):
    """Return what a sample costs."""
    return {"tokens": len(sample["input_ids"])}


def train():
    from counterpoise.loader import DataLoader

    loader = DataLoader(
        Samples(), num_workers=2, balance="isf", budgets={"tokens": 20}, accumulate="auto",
        samples_per_step=16, virtual_ranks=2, shuffle=True, layout="padded", cost=tokens,
    )  # fmt: skip
    while True:
        for step in loader.steps():
            assert step.microbatches


def fork_for_every_line():
    import counterpoise.loader  # noqa: F401

    print("ready", flush=True)
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            train()
        print(pid, flush=True)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    (fork_for_every_line if sys.argv[1:] == ["fork"] else train)()
