"""Trains the demo's model, and measures its figures on the tensors that were delivered.

One process plays the microbatches of all ranks in turn. A microbatch's load is what its device
would process: every place of input_ids, padding included, and every tile of pixel_values. A rank's
load in a step is the sum over its microbatches.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.metrics import TILE_TOKENS, dist_ratio, efficiency
from ...loader.step.info import Step, StepInfo
from ...loader.step.loss import scale_loss
from .model import DemoModelShape, VisionLanguageModel, count_work, sum_loss

LEARNING_RATE = 2e-3
RESOURCES = ("tiles", "tokens")


@dataclass(frozen=True, slots=True)
class MicrobatchLoad:
    """One delivered microbatch; `filled` of its `tokens` places hold a token, others padding."""

    rank: int
    samples: int
    tiles: int
    tokens: int
    filled: int
    work: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as it was trained on; wait_s is the time that the loop waited for it."""

    loads: tuple[MicrobatchLoad, ...]
    keys: tuple[str, ...]
    holes: tuple[str, ...]
    loss: float
    wait_s: float


def measure_step(shape: DemoModelShape, step: Step, loss: float, wait_s: float) -> StepRecord:
    """Return the loads that a step's tensors hold."""
    pairs = list(zip(step.microbatches, step.infos, strict=True))
    return StepRecord(
        loads=tuple(_measure_microbatch(shape, batch, info) for batch, info in pairs),
        keys=tuple(key for info in step.infos for key in info.keys),
        holes=tuple(key for info in step.infos for key in info.holes),
        loss=loss,
        wait_s=wait_s,
    )


def _measure_microbatch(
    shape: DemoModelShape, batch: Mapping[str, Any], info: StepInfo
) -> MicrobatchLoad:
    """Count samples, tiles, tokens and multiply-adds of a padded or packed batch."""
    if "cu_seq_lens" in batch:
        samples, filled = len(batch["cu_seq_lens"]) - 1, int(batch["cu_seq_lens"][-1])
    else:
        samples, filled = len(batch["input_ids"]), int(batch["attention_mask"].sum())
    return MicrobatchLoad(
        rank=info.rank,
        samples=0 if info.empty else samples,
        tiles=len(batch["pixel_values"]) if "pixel_values" in batch else 0,
        tokens=batch["input_ids"].numel(),
        filled=filled,
        work=count_work(shape, batch),
    )


def summarize(records: Sequence[StepRecord]) -> dict[str, Any]:
    """Return the report of one run; raises ValueError for a run without samples."""
    loads = [load for record in records for load in record.loads]
    some = [load for load in loads if load.samples]
    if not some:
        raise ValueError("no sample was delivered, so there is nothing to report; give more data")
    return {
        "delivered": sum(load.samples for load in some),
        "distinct_keys": len({key for record in records for key in record.keys}),
        "holes": sum(len(record.holes) for record in records),
        "pad_ratio": fmean(1 - load.filled / load.tokens for load in some),
        "dist_ratio": {name: dist_ratio(step_totals(records, name)) for name in RESOURCES},
        "waiting": 1 - efficiency(*side_by_side(records)),
        "work_max_over_mean": fmean(map(max_over_mean, step_totals(records, "work").tolist())),
        # The first step waits for processes to start, which is no matter of balance.
        "exposed_wait_s": sum(record.wait_s for record in records[1:]),
        "loss_first": fmean(record.loss for record in records[: _tenth(records)]),
        "loss_last": fmean(record.loss for record in records[-_tenth(records) :]),
    }


def side_by_side(records: Sequence[StepRecord]) -> tuple[Int64, Int64]:
    """Return encoder and LLM work (micro-steps, ranks) in tokens, a tile as TILE_TOKENS.

    The k-th microbatches of all ranks run side by side; places count, padding included.
    """
    rows: list[tuple[MicrobatchLoad, ...]] = []
    for record in records:
        by_rank: dict[int, list[MicrobatchLoad]] = {}
        for load in record.loads:
            by_rank.setdefault(load.rank, []).append(load)
        rows += zip(*(by_rank[rank] for rank in sorted(by_rank)), strict=True)
    encoder = np.array([[load.tiles * TILE_TOKENS for load in row] for row in rows], np.int64)
    return encoder, np.array([[load.tokens for load in row] for row in rows], np.int64)


def step_totals(records: Sequence[StepRecord], name: str) -> Int64:
    """Return int64 (steps, ranks): each rank's sum of one number in every step."""
    rows = []
    for record in records:
        totals: dict[int, int] = {}
        for load in record.loads:
            totals[load.rank] = totals.get(load.rank, 0) + getattr(load, name)
        rows.append(list(totals.values()))
    return np.array(rows, dtype=np.int64)


def max_over_mean(totals: Sequence[int]) -> float:
    """Return the largest total over the mean: the step's time over that of even ranks.

    >>> max_over_mean([4, 2, 2, 0])
    2.0
    """
    return max(totals) / fmean(totals) if any(totals) else 1.0


def _tenth(records: Sequence[StepRecord]) -> int:
    return max(1, len(records) // 10)


def train(
    steps: Iterable[Step],
    shape: DemoModelShape,
    seed: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[StepRecord]:
    """Train a new model, made from the seed, on every step; yield each step's record.

    The gradients of all ranks meet in one process, so the shares are summed (reduction="sum"):
    a step's gradient is that of the mean loss over all label tokens of its global batch.
    """
    torch.manual_seed(seed)
    model = VisionLanguageModel(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    asked = clock()
    for step in steps:
        wait_s = clock() - asked
        loss = accumulate(model, step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield measure_step(shape, step, loss, wait_s)
        asked = clock()


def accumulate(model: VisionLanguageModel, step: Step) -> float:
    """Add a step's gradients to the model's; return the mean loss per label token."""
    total = 0.0
    for batch, info in zip(step.microbatches, step.infos, strict=True):
        loss_sum = sum_loss(model(batch), batch["labels"])
        loss = scale_loss(loss_sum, info, per="token", reduction="sum")
        torch.autograd.backward(loss)
        total += loss.item()
    return total
