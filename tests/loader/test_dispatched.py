"""Loaders whose images travel: microbatches are those of the language model's work, resumed too."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from counterpoise import Ranks
from counterpoise.balancer import Images
from counterpoise.loader import Balance, BalancedBatchSampler, DataLoader
from counterpoise.sched.runtime import Units, UnitSize
from tests.flat_options import balanced_loader
from tests.loader import balanced_data as made

Delivered = list[tuple[int, int, tuple[str, ...]]]


def make(dispatch: str, **changes: Any) -> DataLoader:
    given = {"ranks": Ranks(virtual=2), **changes}
    return balanced_loader(
        made.Augmented(96), grouping="balanced", samples_per_step=24, accumulate=4, shuffle=True,
        collate_fn=made.as_list, dispatch=dispatch, **given,
    )  # fmt: skip


def take(loader: DataLoader) -> Delivered:
    found = [
        (step.number, info.rank, tuple(info.keys)) for step in loader.steps() for info in step.infos
    ]
    loader.close()
    return found


def iterate(loader: DataLoader) -> Iterator[tuple[str, ...]]:
    for _, info in loader.with_info():
        yield tuple(info.keys)


def names_of(loader: DataLoader) -> list[tuple[str, ...]]:
    found = list(iterate(loader))
    loader.close()
    return found


def test_steps_have_the_same_samples_in_other_microbatches() -> None:
    whole, images = take(make("samples")), take(make("images"))
    assert whole != images
    for number in range(4):
        steps = [
            {key for step, _, keys in found if step == number for key in keys}
            for found in (whole, images)
        ]
        assert steps[0] == steps[1]


def test_a_loader_resumed_inside_a_step_keeps_the_plan_and_no_other_takes_its_ledger() -> None:
    expected = names_of(make("images"))
    loader = make("images")
    begun = [names for _, names in zip(range(11), iterate(loader), strict=False)]
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    resumed = make("images")
    resumed.load_state_dict(state)
    assert begun + names_of(resumed) == expected
    other = make("samples")
    with pytest.raises(ValueError, match="only the very same plan can continue"):
        other.load_state_dict(state)
    other.close()


def test_pipelines_take_images_that_travel() -> None:
    stages = {"ranks": {"pp": 2, "dp": 1}}
    make("images", **stages).close()
    columns = {"tiles": np.ones(8, int), "tokens": np.ones(8, int)}
    balance = Balance(images=Images("images"), samples_per_step=4)
    BalancedBatchSampler(columns, balance, ranks=stages["ranks"])
    whole = Units(backbone=UnitSize(1, 1), encoder=UnitSize(1, 1))
    with pytest.raises(ValueError, match="give Units spread=True, or use dispatch 'samples'"):
        make("images", ranks=whole)
