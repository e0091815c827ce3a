"""The demo's figures are those of the delivered tensors; what is timed comes from its clocks."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from counterpoise.tools.demo.model import DemoModelShape
from counterpoise.tools.demo.train import (
    DemoMicrobatch,
    StepRecord,
    measure_load,
    summarize,
    timed,
    train,
)
from counterpoise.workers.collate.layouts import collate_padded, collate_samples

SHAPE = DemoModelShape(vocabulary=20, image_token=19, tile=8, patch=4, tokens_per_tile=4, width=16)
Sample = dict[str, Any]
Ranks = Sequence[Sequence[Sample]]


def make_sample(length: int, tiles: int = 0, seed: int = 0) -> Sample:
    text = np.random.default_rng(seed).integers(0, 9, length)
    ids = np.concatenate([np.full(4 * tiles, 19), text]).astype(np.int32)
    return {
        "input_ids": ids,
        "labels": np.where(ids == 19, -100, ids),
        "pixel_values": np.full((tiles, 3, 8, 8), 7, np.uint8),
        "tiles_per_image": np.ones(tiles, np.int32),
    }


def make_step(ranks: Ranks, layout: Any, step: int = 0) -> Iterator[DemoMicrobatch]:
    """One microbatch a rank."""
    for rank, samples in enumerate(ranks):
        batch = collate_samples(samples, layout)
        yield DemoMicrobatch(step, rank, batch, wait_s=0.25, empty=not samples)


def record(ranks: Ranks, layout: Any = "padded", seconds: float = 1.0) -> StepRecord:
    """A step whose ranks each compute for so many seconds."""
    loads = tuple(measure_load(each, seconds) for each in make_step(ranks, layout))
    return StepRecord(loads, loss=1.0)


def test_padding_is_the_share_of_places_without_a_token() -> None:
    assert summarize([record([[make_sample(2), make_sample(8)]])])["padding"] == 6 / 16
    packed = record([[make_sample(2), make_sample(8)]], "packed")
    assert summarize([packed])["padding"] == 0.0


def test_a_microbatch_without_samples_is_no_sample_and_no_padding() -> None:
    found = summarize([record([[make_sample(2), make_sample(8)], []])])
    assert (found["samples"], found["padding"]) == (2, 6 / 16)


def test_counts_come_from_the_tensors() -> None:
    batch = collate_padded([make_sample(4, tiles=2), make_sample(9, tiles=1)])
    load = measure_load(DemoMicrobatch(0, 0, batch), cpu_s=0.0)
    assert (load.samples, load.tiles, load.filled, load.tokens) == (2, 3, 25, 26)


def test_ranks_wait_for_the_slowest_in_the_encoder_and_in_the_language_model() -> None:
    found = summarize([record([[make_sample(4, tiles=3)], [make_sample(8, tiles=1)]])])
    work, time = 4 * 307 + 16 + 12, 2 * (3 * 307 + 16)
    assert found["waiting"] == pytest.approx(1 - work / time)


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    def step(*seconds: float) -> StepRecord:
        """Two microbatches of each of two ranks."""
        loads = [record([[make_sample(2)], [make_sample(2)]], seconds=s).loads for s in seconds]
        return StepRecord((loads[0][0], loads[1][1], loads[2][0], loads[3][1]), 1.0)

    found = summarize([step(9, 9, 9, 9), step(1, 3, 4, 1), step(1, 1, 1, 4)])
    assert found["samples_per_second"] == 8 / (5 + 5)  # the first step is not timed


def test_a_last_step_with_fewer_samples_is_neither_timed_nor_waited_in() -> None:
    whole = record([[make_sample(4)], [make_sample(4)]])
    found = summarize([whole, whole, record([[make_sample(9)], []])])
    assert (found["samples"], found["waiting"], found["samples_per_second"]) == (5, 0, 2)


def test_the_first_batch_is_waited_for_apart() -> None:
    found = summarize([record([[make_sample(2)], [make_sample(2)]])] * 2)
    assert (found["first_batch_s"], found["wait_for_data_s"]) == (0.25, 0.75)


def test_losses_are_means_over_the_first_and_last_tenth() -> None:
    plain = record([[make_sample(2)]])
    found = summarize([replace(plain, loss=float(k)) for k in range(20)])
    assert (found["loss_first"], found["loss_last"]) == (0.5, 18.5)


def test_a_run_without_samples_has_nothing_to_report() -> None:
    for records in ([], [record([[]])]):
        with pytest.raises(ValueError, match="nothing to report"):
            summarize(records)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_the_grouping_of_a_step_does_not_change_training(layout: str) -> None:
    samples = [make_sample(3 + k, tiles=k % 3, seed=k) for k in range(8)]
    whole = [make_step([samples], "padded", n) for n in range(4)]
    spread = [make_step([samples[5:], samples[:1], [], samples[1:5]], layout, n) for n in range(4)]
    ours, theirs = (
        [r.loss for r in train(itertools.chain(*steps), SHAPE, 3, itertools.count().__next__)]
        for steps in (spread, whole)
    )
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert ours[-1] < ours[0]


def test_waiting_is_the_time_between_asking_and_getting() -> None:
    clock = iter([0.0, 2.0, 10.0, 10.5, 20.0]).__next__
    assert list(timed("ab", clock)) == [(2.0, "a"), (0.5, "b")]
