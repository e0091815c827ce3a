"""Rows filled to two neighbouring buckets: less is padded, and ranks still wait for little."""

from itertools import chain
from typing import Any

import numpy as np
import pytest

from counterpoise.balancer import PlanConfig, Window, make_planner
from counterpoise.balancer.planning.grouping import by_name
from counterpoise.balancer.planning.grouping.by_name import blocked
from tests.flat_options import flat_balance

RANKS, ROWS = 8, 16
# About 6 samples of 813 tokens to a microbatch, .6 of 8192.
COSTS = np.random.default_rng(0).gamma(2.0, 406, 768).astype(np.int64).clip(20, 4000)[:, None]


def config_of(**options: Any) -> PlanConfig:
    given = {"budgets": {"tokens": 8192}, "accumulate": ROWS, "oversize": "refuse", **options}
    return PlanConfig.from_balance(
        flat_balance(**given), ranks=RANKS, resources=("tokens",), samples_per_step=len(COSTS)
    )


def sizes(**options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return sums and buckets of a step's microbatches, (ranks, rows)."""
    config = config_of(**options)
    (batch,) = make_planner(config).plan(Window(0, 0, 0, COSTS, last=True)).batches
    ordinals = sorted(chain(*(chain(*(m.ordinals for m in rank)) for rank in batch.ranks)))
    assert ordinals == list(range(len(COSTS)))
    sums = np.array([[COSTS[list(m.ordinals)].sum() for m in rank] for rank in batch.ranks])
    return sums, config.sizing.bucketed(sums.reshape(-1, 1)).reshape(sums.shape)


def padding(sums: np.ndarray, held: np.ndarray) -> float:
    """Return the share of what ranks compute, waiting included, that is no sample's."""
    return 1 - sums.sum() / (held.max(axis=0).sum() * RANKS)


@pytest.mark.parametrize("waits", ["microbatch", "step"])
@pytest.mark.parametrize(
    ("options", "most", "alike"),
    [({"buckets": {"tokens": [4096, 8192]}}, 0.08, 0.35), ({"buckets": 8}, 0.04, 0.05)],
)
def test_rows_of_two_buckets_pad_less(
    options: dict[str, Any], most: float, alike: float, waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums, held = sizes(waits=waits, **options)
    assert len({*held.ravel().tolist()}) == 2
    assert padding(sums, held) < most
    if waits == "step":
        ranks = held.sum(axis=1)
        assert ranks.max() <= 1.05 * ranks.mean()
    monkeypatch.setattr(by_name, "TRIES", 0)
    assert padding(*sizes(waits=waits, **options)) > alike


def test_a_step_that_fits_the_smallest_or_needs_the_largest_is_filled_alike() -> None:
    config = config_of(buckets={"tokens": [4096, 8192]})
    assert blocked(config, np.full((100, 1), 10), RANKS * ROWS, 0) is None
    assert blocked(config, np.full((1024, 1), 1020), RANKS * ROWS, 0) is None
    some = blocked(config, COSTS, RANKS * ROWS, 0)
    assert some is not None
    # whole rows, the first of which keep the difference of both buckets free
    assert {*some.ravel().tolist()} == {0, 4096}
    assert np.count_nonzero(some) % RANKS == 0
    assert (8192 * len(some) - some.sum()) >= COSTS.sum()


def test_samples_too_large_for_the_lower_bucket_are_planned_all_the_same() -> None:
    costs = np.array([[1500]] * 8 + [[500]] * 8)
    config = PlanConfig(
        2, 16, 4, ("tokens",), (2000,), oversize="refuse", buckets=(("tokens", (1000, 2000)),)
    )
    (batch,) = make_planner(config).plan(Window(0, 0, 0, costs, last=True)).batches
    assert [costs[list(m.ordinals)].sum() for rank in batch.ranks for m in rank] == [2000] * 8
