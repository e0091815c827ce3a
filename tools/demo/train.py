"""Trains the demo's model, counts what was delivered, and times what each rank computes.

One process plays the microbatches of all ranks in turn. Counted, in the tensors that arrived, is a
microbatch's load: every place of input_ids, padding included, and every tile of pixel_values. Timed
are the loop's waits for data, and the CPU time of each rank: on so many devices a step takes as
long as the rank that computes longest. CPU time, so that other programs do not count.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from statistics import fmean
from typing import Any

import numpy as np
import torch

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.metrics import TILE_TOKENS, efficiency
from ...workers.collate.labels import count_batch_label_tokens
from .model import DemoModelShape, VisionLanguageModel, sum_loss

LEARNING_RATE = 2e-3
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class DemoMicrobatch:
    """A batch that one rank computes in a step; wait_s is the time that the loop waited for it.

    empty: it holds no sample, and is there so that all ranks have as many.
    """

    step: int
    rank: int
    batch: Mapping[str, Any]
    wait_s: float = 0.0
    empty: bool = False


@dataclass(frozen=True, slots=True)
class MicrobatchLoad:
    """One delivered microbatch; `filled` of its `tokens` places hold a token, others padding."""

    rank: int
    samples: int
    tiles: int
    tokens: int
    filled: int
    cpu_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as it was trained on; loss is the mean over its label tokens."""

    loads: tuple[MicrobatchLoad, ...]
    loss: float

    @property
    def samples(self) -> int:
        """The samples of all ranks."""
        return sum(load.samples for load in self.loads)

    @property
    def slowest_s(self) -> float:
        """The CPU time of the rank that computed longest."""
        by_rank: dict[int, float] = {}
        for load in self.loads:
            by_rank[load.rank] = by_rank.get(load.rank, 0.0) + load.cpu_s
        return max(by_rank.values())


def measure_load(microbatch: DemoMicrobatch, cpu_s: float) -> MicrobatchLoad:
    """Return what a padded or packed batch's tensors hold, and the time that it took."""
    batch = microbatch.batch
    if "cu_seq_lens" in batch:
        filled = int(batch["cu_seq_lens"][-1])
    else:
        filled = int(batch["attention_mask"].sum())
    return MicrobatchLoad(
        rank=microbatch.rank, samples=0 if microbatch.empty else len(batch["images_per_sample"]),
        tiles=len(batch["pixel_values"]) if "pixel_values" in batch else 0,
        tokens=batch["input_ids"].numel(), filled=filled, cpu_s=cpu_s, wait_s=microbatch.wait_s,
    )  # fmt: skip


def summarize(records: Sequence[StepRecord]) -> dict[str, Any]:
    """Return the figures of a run; raises ValueError for a run without samples.

    A last step with fewer samples counts for the loss and padding alone: its ranks wait for reasons
    of its own. Nor is the first step timed, in which torch chooses its kernels.
    """
    loads = [load for record in records for load in record.loads if load.samples]
    if not loads:
        raise ValueError("no sample was delivered, so there is nothing to report; give more data")
    whole = [record for record in records if record.samples == records[0].samples]
    timed = whole[1:] or whole
    tenth = max(1, len(records) // 10)
    waits = [load.wait_s for record in records for load in record.loads]
    return {
        "samples": sum(load.samples for load in loads),
        "padding": 1 - sum(load.filled for load in loads) / sum(load.tokens for load in loads),
        "waiting": 1 - efficiency(*side_by_side(whole)),
        "samples_per_second": sum(record.samples for record in timed)
        / sum(record.slowest_s for record in timed),
        "first_batch_s": waits[0],
        "wait_for_data_s": sum(waits[1:]),
        "loss_first": fmean(record.loss for record in records[:tenth]),
        "loss_last": fmean(record.loss for record in records[-tenth:]),
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


def train(
    microbatches: Iterable[DemoMicrobatch], shape: DemoModelShape, seed: int, cpu_clock: Clock
) -> Iterator[StepRecord]:
    """Train a new model, made from the seed, on every step; yield each step's record.

    A step's gradient is that of the mean loss over all label tokens of its global batch: sums are
    added up, and divided when the step's last microbatch is there.
    """
    torch.manual_seed(seed)
    model = VisionLanguageModel(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for _, step in groupby(microbatches, key=attrgetter("step")):
        loads, total, labels = list[MicrobatchLoad](), 0.0, 0
        for microbatch in step:
            started = cpu_clock()
            loss = sum_loss(model(microbatch.batch), microbatch.batch["labels"])
            torch.autograd.backward(loss)
            loads.append(measure_load(microbatch, cpu_clock() - started))
            total += loss.item()
            labels += count_batch_label_tokens(microbatch.batch, [])
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= max(1, labels)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield StepRecord(tuple(loads), total / max(1, labels))


def timed(batches: Iterable[Any], clock: Clock = time.perf_counter) -> Iterator[tuple[float, Any]]:
    """Yield what an iterable has, each with the seconds that it was waited for."""
    iterator = iter(batches)
    while True:
        asked = clock()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        yield clock() - asked, batch
