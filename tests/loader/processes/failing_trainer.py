"""Ranks that fail in several manners: failing_trainer.py FOLDER MANNER ...; see test_failing.

For each manner two processes are forked, which make a process group of their own. Rank 1 fails in
its second step, and both write down what ends their training.
"""

import itertools
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from counterpoise.loader import Balance, DataLoader, scale_loss
from tests.held_port import held_port

TIMEOUT_S = 10.0
# Those of "holes" tell each other which samples they could not use, the others label tokens.
MANNERS = ("unused", "raise", "holes", "exit", "kill", "stop")
WORDS = 9


class Texts:
    """Texts of some lengths."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> list[int]:
        return [*range(2 + index % 7)]


def collate(samples: list[list[int]]) -> dict[str, torch.Tensor]:
    """Fill texts up; their labels are themselves."""
    rows = torch.full((len(samples), max(map(len, samples), default=1)), -100)
    for row, sample in zip(rows, samples, strict=True):
        row[: len(sample)] = torch.tensor(sample)
    return {"input_ids": rows.clamp(min=0), "labels": rows}


class Model(nn.Module):
    """A model with a layer that a microbatch may not use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(WORDS, WORDS), nn.Linear(WORDS, WORDS)

    def forward(self, ids: torch.Tensor, uses_all: bool) -> torch.Tensor:
        """Return logits."""
        found: torch.Tensor = self.first(ids)
        return self.second(found) if uses_all else found


def fail(manner: str) -> None:
    """Fail as rank 1."""
    if manner in ("raise", "holes"):
        raise ValueError("an image of no pixels")
    if manner == "exit":
        sys.exit(0)
    if manner in ("kill", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if manner == "kill" else signal.SIGSTOP)


def train(manner: str, rank: int, meeting: str) -> None:
    """Train an epoch; rank 1 does not get far."""
    distributed.init_process_group(
        "gloo", meeting, rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    balance = Balance(
        grouping="isf", budgets={"tokens": 40}, accumulate=1, samples_per_step=8, seed=1,
        label_tokens=None if manner == "holes" else "batch",
    )  # fmt: skip
    costs = {"tokens": [2 + index % 7 for index in range(64)]}
    loader: DataLoader[Any, Any] = DataLoader(
        Texts(), balance=balance, cost=costs, shuffle=True,
        collate_fn=collate, timeout=TIMEOUT_S, on_error="skip" if manner == "holes" else "raise",
    )  # fmt: skip
    model: Any = Model()
    if manner == "unused":
        model = DistributedDataParallel(model)
    for batch, info in loader.with_info():
        fails = rank == 1 and info.step == 1
        if fails:
            fail(manner)
        logits = model(batch["input_ids"], not (fails and manner == "unused"))
        if manner == "unused":
            loss = functional.cross_entropy(logits.mT, batch["labels"], reduction="sum")
            scale_loss(loss, info).backward()


def main(folder: str, *manners: str) -> None:
    """Fork the ranks of all manners, and wait for those that end."""
    torch.set_num_threads(1)
    started = {}
    with held_port() as port:
        for manner, rank in itertools.product(manners, range(2)):
            started[manner, rank] = os.fork()
            if not started[manner, rank]:
                said = Path(folder, f"{manner}-{rank}")
                # A process that is stopped may hold the lock of a file.
                meeting = f"file://{folder}/{manner}.meeting"
                try:
                    train(manner, rank, f"tcp://127.0.0.1:{port}" if manner == "stop" else meeting)
                except BaseException as error:
                    said.with_suffix(".part").write_text(f"{type(error).__name__}: {error}")
                    said.with_suffix(".part").rename(said)
                    raise
                raise AssertionError("the epoch came to its end")
    stopped = started.pop(("stop", 1), None)
    for _ in started:
        os.wait()
    if stopped:
        os.kill(stopped, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
