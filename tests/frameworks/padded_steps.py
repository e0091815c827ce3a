"""Measures padded steps in transformers' Trainer: wall time against what was planned.

`PYTHONPATH=.venv/typing torchrun --nproc-per-node 2 -m tests.frameworks.padded_steps WAY`, in an
environment with transformers; WAY is random, equal, free, or batch_rebalance (Trainer's own). A
stand-in model sleeps 0.1 ms for each position of its padded microbatch. Prints one JSON object:
seconds a step, the plan's (the most positions of a rank, times 0.1 ms), time to the first step.
"""

import json
import os
import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer, TrainerCallback, TrainingArguments

import counterpoise as cp

SAMPLES, STEPS, ACCUMULATE, EACH = 1280, 12, 4, 8
POSITION_S = 1e-4


class Texts(torch.utils.data.Dataset[dict[str, list[int]]]):
    """Texts of lognormal lengths, tokenized; reading one takes as long as a small file."""

    lengths = np.random.default_rng(0).lognormal(5, 0.8, SAMPLES).clip(8, 1024).astype(int)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        time.sleep(5e-4)
        return {"input_ids": [1] * self.lengths[index], "labels": [1] * self.lengths[index]}


def pad(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Fill up to the longest, as Trainer's default data collator with padding does."""
    return {
        name: pad_sequence([torch.tensor(s[name]) for s in samples], batch_first=True)
        for name in ("input_ids", "labels")
    }


class StandIn(torch.nn.Module):
    """Sleeps in proportion to count x longest, forward and backward together."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.positions: list[int] = []

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, **kwargs: Any
    ) -> dict[str, Any]:
        self.positions.append(input_ids.numel())
        time.sleep(input_ids.numel() * POSITION_S)
        return {"loss": self.weight.sum() * labels.sum() / kwargs["num_items_in_batch"]}


class Clock(TrainerCallback):
    """Notes when optimizer steps end."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note one."""
        self.times.append(time.perf_counter())


def main(way: str) -> None:
    """Train for some steps and print what they took."""
    model, clock, data = StandIn(), Clock(), Texts()
    own = {"train_sampling_strategy": way} if way == "batch_rebalance" else {}
    args = TrainingArguments(
        tempfile.mkdtemp(), max_steps=STEPS, per_device_train_batch_size=EACH, use_cpu=True,
        gradient_accumulation_steps=ACCUMULATE, report_to=[], save_strategy="no",
        disable_tqdm=True, logging_steps=10**6, remove_unused_columns=False, **own,
    )  # fmt: skip
    begin = time.perf_counter()
    trainer = Trainer(model, args, data_collator=pad, train_dataset=data, callbacks=[clock])
    if way in ("equal", "free"):
        balance = cp.Balance("auto", counts=way, accumulate=ACCUMULATE, waits="step")  # type: ignore[arg-type]
        loader = cp.DataLoader(
            data, batch_size=EACH, shuffle=True, collate_fn=pad, balance=balance, num_workers=1
        )
        cp.adapters.attach_trainer(trainer, loader)
    trainer.train()
    mine = np.array(model.positions).reshape(STEPS, -1).sum(axis=1)
    every: list[Any] = [None] * args.world_size
    if args.world_size > 1:
        dist.all_gather_object(every, mine.tolist())
    else:
        every = [mine.tolist()]
    if int(os.environ.get("RANK", 0)) == 0:
        planned = np.array(every).max(axis=0) * POSITION_S
        taken = np.diff(clock.times)
        print(json.dumps({
            "way": way, "ranks": args.world_size, "step_s": float(taken.mean()),
            "planned_s": float(planned[1:].mean()), "first_step_s": clock.times[0] - begin,
        }))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
