"""The demo's figures are those of the delivered tensors, by the definitions of the papers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.balancer.planning.problem.metrics import dist_ratio
from counterpoise.loader.collate.layouts import collate_padded, collate_samples
from counterpoise.loader.step.info import Step, StepInfo
from counterpoise.tools.demo.model import DemoModelShape
from counterpoise.tools.demo.train import (
    StepRecord,
    max_over_mean,
    measure_step,
    summarize,
    train,
)
from counterpoise.workers.sources.labels import count_label_tokens

SHAPE = DemoModelShape(vocabulary=20, image_token=19, tile=8, patch=4, tokens_per_tile=4, width=16)


def make_sample(length: int, tiles: int = 0, seed: int = 0) -> dict[str, Any]:
    text = np.random.default_rng(seed).integers(0, 9, length)
    ids = np.concatenate([np.full(4 * tiles, 19), text]).astype(np.int32)
    return {
        "input_ids": ids,
        "labels": np.where(ids == 19, -100, ids),
        "pixel_values": np.full((tiles, 3, 8, 8), 7, np.uint8),
        "tiles_per_image": np.ones(tiles, np.int32),
    }


def make_step(ranks: Sequence[Sequence[dict[str, Any]]], layout: Any, number: int = 0) -> Step:
    """One microbatch a rank."""
    samples = sum(len(rank) for rank in ranks)
    labels = [sum(count_label_tokens(s["labels"]) for s in rank) for rank in ranks]
    infos = [
        StepInfo(
            epoch=0,
            step=number,
            microbatch=0,
            microbatches=1,
            rank=r,
            ranks=len(ranks),
            samples=len(rank),
            label_tokens=labels[r],
            rank_samples=len(rank),
            rank_label_tokens=labels[r],
            step_samples=samples,
            step_label_tokens=sum(labels),
            keys=tuple(f"{number}-{r}-{i}" for i in range(len(rank))),
        )
        for r, rank in enumerate(ranks)
    ]
    return Step(number, tuple(collate_samples(rank, layout) for rank in ranks), tuple(infos))


def record(ranks: Sequence[Sequence[dict[str, Any]]], layout: Any = "padded") -> StepRecord:
    return measure_step(SHAPE, make_step(ranks, layout), loss=1.0, wait_s=0.25)


def test_padding_is_the_share_of_places_without_a_token() -> None:
    assert summarize([record([[make_sample(2), make_sample(8)]])])["pad_ratio"] == 6 / 16
    packed = record([[make_sample(2), make_sample(8)]], "packed")
    assert summarize([packed])["pad_ratio"] == 0.0


def test_a_microbatch_without_samples_is_no_sample_and_no_padding() -> None:
    report = summarize([record([[make_sample(2), make_sample(8)], []])])
    assert report["delivered"] == 2
    assert report["pad_ratio"] == 6 / 16


def test_dist_ratio_counts_tiles_and_places_per_rank() -> None:
    ranks = [[make_sample(4, tiles=3)], [make_sample(8, tiles=1)]]
    report = summarize([record(ranks)])
    assert report["dist_ratio"]["tiles"] == pytest.approx(1 - 2 / 3)
    assert report["dist_ratio"]["tokens"] == pytest.approx(1 - 14 / 16)


def test_holes_and_keys_are_added_up() -> None:
    plain = record([[make_sample(2)]])
    holed = dataclasses.replace(plain, holes=("x", "y"))
    report = summarize([plain, holed])
    assert report["holes"] == 2
    assert report["delivered"] == 2
    assert report["distinct_keys"] == 1


def test_waiting_is_added_up_from_the_second_step_on() -> None:
    started = dataclasses.replace(record([[make_sample(2)]]), wait_s=30.0)
    assert summarize([started, record([[make_sample(2)]])])["exposed_wait_s"] == 0.25


def test_losses_are_means_over_the_first_and_last_tenth() -> None:
    plain = record([[make_sample(2)]])
    steps = [dataclasses.replace(plain, loss=float(k)) for k in range(20)]
    report = summarize(steps)
    assert (report["loss_first"], report["loss_last"]) == (0.5, 18.5)


def test_a_run_without_samples_has_nothing_to_report() -> None:
    for records in ([], [record([[]])]):
        with pytest.raises(ValueError, match="nothing to report"):
            summarize(records)


@given(totals=st.lists(st.integers(0, 1000), min_size=1, max_size=16))
def test_both_measures_say_the_same_of_one_step(totals: list[int]) -> None:
    waiting = dist_ratio(np.array([totals]))
    assert 0.0 <= waiting < 1.0
    assert max_over_mean(totals) == pytest.approx(1 / (1 - waiting))


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_the_grouping_of_a_step_does_not_change_training(layout: str) -> None:
    samples = [make_sample(3 + k, tiles=k % 3, seed=k) for k in range(8)]
    whole = [make_step([samples], "padded", n) for n in range(4)]
    spread = [make_step([samples[5:], samples[:1], [], samples[1:5]], layout, n) for n in range(4)]
    ours, theirs = ([r.loss for r in train(steps, SHAPE, seed=3)] for steps in (spread, whole))
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert ours[-1] < ours[0]


def test_waiting_is_the_time_between_asking_and_getting() -> None:
    clock = iter([0.0, 2.0, 10.0, 10.5, 20.0]).__next__
    steps = [make_step([[make_sample(4)]], "packed", n) for n in range(2)]
    assert [r.wait_s for r in train(steps, SHAPE, seed=0, clock=clock)] == [2.0, 0.5]


def test_counts_come_from_the_tensors_and_not_from_the_info() -> None:
    step = make_step([[make_sample(4, tiles=2)]], "padded")
    more = collate_padded([make_sample(4, tiles=2), make_sample(9, tiles=1)])
    swapped = Step(step.number, (more,), step.infos)
    load = measure_step(SHAPE, swapped, loss=0.0, wait_s=0.0).loads[0]
    assert (load.samples, load.tiles, load.filled, load.tokens) == (2, 3, 25, 26)
