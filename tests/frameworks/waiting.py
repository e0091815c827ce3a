"""Measures how long ranks wait where four frameworks synchronise, and how long their steps are.

`PYTHONPATH=.venv/typing python -m tests.frameworks.waiting`, in an environment with accelerate,
transformers and lightning. 4 ranks x 4 microbatches of 8 texts; a stand-in model sleeps .1 ms for
each position of its microbatch (20 ms and more). Batches are padded, or joined so that work adds
up. Waiting is counted in DDP's gradient hook: from a rank's gradients until those of the last rank,
without the first step. Prints a JSON object for each framework and way: the share of their time
that ranks wait, and seconds a step.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

import counterpoise as cp

RANKS, ACCUMULATE, EACH, STEPS = 4, 4, 8, 7
POSITION_S = 1e-4
# how batches are made, and what the loop does: torch's loader, "auto", "auto" with weights, and
# what Trainer has itself
WAYS = (
    ("joined", "random"), ("joined", "equal"), ("padded", "random"), ("padded", "equal"),
    ("padded", "free"), ("padded", "batch_rebalance"),
)  # fmt: skip


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
    """Texts of lognormal lengths."""

    lengths = np.random.default_rng(0).lognormal(5, 0.8, RANKS * ACCUMULATE * EACH * STEPS)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.ones(int(self.lengths[index].clip(25, 1024)), dtype=torch.int64)
        return {"input_ids": ids, "labels": ids}


def padded(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Fill up to the longest."""
    return {
        name: pad_sequence([each[name] for each in samples], batch_first=True)
        for name in samples[0]
    }


def joined(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Put texts one after the other."""
    return {name: torch.cat([each[name] for each in samples])[None] for name in samples[0]}


class StandIn(torch.nn.Module):
    """Sleeps in proportion to the batch's positions; its loss is a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **kwargs: Any) -> Any:
        time.sleep(input_ids.numel() * POSITION_S)
        loss = self.weight.sum() * labels.sum() / kwargs.get("num_items_in_batch", 1)
        return {"loss": loss}


def _loader(kind: str, way: str) -> Any:
    data, collate = Texts(), padded if kind == "padded" else joined
    named: dict[str, Any] = {"batch_size": EACH, "collate_fn": collate, "num_workers": 1}
    if way == "random":
        return torch.utils.data.DataLoader(data, shuffle=True, **named)
    counts: Any = way  # said, as attach_trainer would choose "free"
    balance = cp.Balance("auto", accumulate=ACCUMULATE, counts=counts)
    return cp.DataLoader(data, shuffle=True, balance=balance, **named)


def _loss(model: Any, batch: Any, info: Any, divided_by: int) -> Any:
    """Return a microbatch's part of the mean: its own mean, or weighed."""
    loss = model(**batch)["loss"]
    if info is None:
        return loss / batch["input_ids"].numel() * (1 if divided_by > 1 else 1 / ACCUMULATE)
    return cp.scale_loss(loss, info, divided_by=divided_by)


def _pairs(loader: Any, way: str) -> Any:
    return loader.with_info() if way == "free" else ((batch, None) for batch in loader)


def by_hand(kind: str, way: str) -> None:
    """DDP, which synchronises after each microbatch."""
    model = DistributedDataParallel(StandIn())
    optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.0), _loader(kind, way)
    if way == "random":
        sampler: Any = torch.utils.data.DistributedSampler(loader.dataset)
        loader = torch.utils.data.DataLoader(
            loader.dataset, EACH, sampler=sampler, collate_fn=loader.collate_fn, num_workers=1
        )
    for number, (batch, info) in enumerate(_pairs(loader, way)):
        _loss(model, batch, info, 1).backward()
        if (number + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()


def accelerate(kind: str, way: str) -> None:
    """accelerate, which synchronises at the last microbatch of a step."""
    from accelerate import Accelerator

    accelerator, model = Accelerator(gradient_accumulation_steps=ACCUMULATE), StandIn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, _loader(kind, way))
    for batch, info in _pairs(loader, way):
        with accelerator.accumulate(wrapped):
            accelerator.backward(_loss(wrapped, batch, info, ACCUMULATE))
            optimizer.step()
            optimizer.zero_grad()


def lightning(kind: str, way: str) -> None:
    """Lightning, which synchronises at the last microbatch of a step."""
    from lightning import LightningModule

    from .lightning_cases import trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = StandIn()

        def training_step(self, batch: Any, _: int) -> Any:
            batch, info = batch if way == "free" else (batch, None)
            return _loss(self.model, batch, info, ACCUMULATE)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    loader = _loader(kind, way)
    given = loader.with_info() if way == "free" else loader
    trainer(max_epochs=1, accumulate_grad_batches=ACCUMULATE).fit(Module(), given)


def hf_trainer(kind: str, way: str) -> None:
    """transformers' Trainer, which synchronises at the last microbatch of a step."""
    import tempfile

    from transformers import Trainer, TrainingArguments

    args = TrainingArguments(
        tempfile.mkdtemp(), num_train_epochs=1, per_device_train_batch_size=EACH, use_cpu=True,
        gradient_accumulation_steps=ACCUMULATE, report_to=[], save_strategy="no", max_grad_norm=0,
        disable_tqdm=True, logging_strategy="no", remove_unused_columns=False,
        dataloader_num_workers=1,
        **({"train_sampling_strategy": way} if way == "batch_rebalance" else {}),
    )  # fmt: skip
    loader = _loader(kind, "random" if way == "batch_rebalance" else way)
    trainer = Trainer(StandIn(), args, data_collator=loader.collate_fn, train_dataset=Texts())
    if way not in ("random", "batch_rebalance"):
        cp.adapters.attach_trainer(trainer, loader)
    trainer.train()


LOOPS: dict[str, Callable[[str, str], None]] = {
    "by_hand": by_hand, "accelerate": accelerate, "lightning": lightning, "trainer": hf_trainer,
}  # fmt: skip


def measured(framework: str, kind: str, way: str) -> tuple[float, float]:
    """Return the share of its time that this rank waits, and the seconds of a step."""
    waits: list[tuple[float, float]] = []
    make = DistributedDataParallel.__init__

    def made(self: Any, *args: Any, **named: Any) -> None:
        make(self, *args, **named)
        self.register_comm_hook(waits, _wait)

    with patch.object(DistributedDataParallel, "__init__", made):
        LOOPS[framework](kind, way)
    first = len(waits) // STEPS  # of the first step, which begins when processes have started
    begin, end = waits[first - 1][1], waits[-1][1]
    waited = sum(until - since for since, until in waits[first:])
    return waited / (end - begin), (end - begin) / (STEPS - 1)


# DDP takes a bucket of its own type or of none, and the former has no name for type checkers.
def _wait(waits: Any, bucket) -> torch.futures.Future[torch.Tensor]:
    since = time.perf_counter()
    dist.barrier()
    waits.append((since, time.perf_counter()))
    total = bucket.buffer()
    dist.all_reduce(total)
    done = torch.futures.Future[torch.Tensor]()
    done.set_result(total / dist.get_world_size())
    return done


def main() -> None:
    """Measure the frameworks that are named, or all, and print what they took."""
    from .pool import Pool

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frameworks", nargs="*", default=list(LOOPS))
    pool = Pool(RANKS)
    try:
        for framework in parser.parse_args().frameworks:
            for kind, way in WAYS if framework == "trainer" else WAYS[:-1]:
                named = {"framework": framework, "kind": kind, "way": way}
                waiting, step_s = np.mean(pool.run("waiting:measured", **named), axis=0)
                found = {**named, "waiting": round(waiting, 4), "step_s": round(step_s, 3)}
                print(json.dumps(found), flush=True)
    finally:
        pool.close()


if __name__ == "__main__":
    main()
