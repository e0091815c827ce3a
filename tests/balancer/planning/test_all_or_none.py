"""All or none: at each microbatch index all ranks have images, or none has."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counterpoise.balancer.planning.partition.all_or_none import mixed_rows
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import GlobalBatch, PlanConfig, Window
from counterpoise.balancer.planning.problem.options import Accumulate
from tests.flat_options import flat_balance


def samples(count: int, images: int, seed: int = 0) -> np.ndarray:
    """Costs (count, 2) of tiles and tokens; `images` samples have 1 to 12 tiles."""
    draw = np.random.default_rng(seed)
    tiles = np.zeros(count, dtype=np.int64)
    tiles[draw.permutation(count)[:images]] = draw.integers(1, 13, images)
    return np.stack([tiles, draw.lognormal(5, 1, count).astype(np.int64) + 1], axis=1)


def plan(costs: np.ndarray, ranks: int, accumulate: Accumulate, **more: Any) -> GlobalBatch:
    given = {
        "resources": ("tiles", "tokens"),
        "budgets": (None, None),
        "all_or_none": "tiles",
        **more,
    }
    config = PlanConfig(ranks, len(costs), accumulate, **given)
    (batch,) = make_planner(config).plan(Window(0, 0, 0, costs, last=True)).batches
    return batch


def loads_of(batch: GlobalBatch, costs: np.ndarray) -> np.ndarray:
    """Loads (ranks, microbatches, 2); every sample is in one microbatch."""
    held = [o for rank in batch.ranks for microbatch in rank for o in microbatch.ordinals]
    assert sorted(held) == list(range(len(costs)))
    return np.array([[costs[list(m.ordinals)].sum(axis=0) for m in rank] for rank in batch.ranks])


def mixed(batch: GlobalBatch, costs: np.ndarray) -> list[int]:
    return mixed_rows(loads_of(batch, costs)[:, :, 0] > 0).tolist()


@settings(max_examples=60)
@given(
    ranks=st.integers(2, 9), accumulate=st.integers(1, 4), each=st.integers(2, 6),
    share=st.floats(0, 1), waits=st.sampled_from(["microbatch", "step"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_no_row_is_mixed_where_images_and_samples_are_enough(
    ranks: int, accumulate: int, each: int, share: float, waits: Any, seed: int
) -> None:
    """With two samples in each microbatch and an image for each rank it is always possible."""
    count = ranks * accumulate * each
    images = max(ranks, round(share * count))
    costs = samples(count, images, seed)
    batch = plan(costs, ranks, accumulate, counts="equal", waits=waits)
    assert mixed(batch, costs) == []
    assert {len(m.ordinals) for rank in batch.ranks for m in rank} == {each}


@settings(max_examples=40)
@given(
    ranks=st.integers(2, 6), accumulate=st.integers(1, 3), share=st.floats(0, 1),
    tiles=st.integers(12, 40), seed=st.integers(0, 99),
)  # fmt: skip
def test_budgets_hold_and_no_more_rows_are_mixed_than_without(
    ranks: int, accumulate: int, share: float, tiles: int, seed: int
) -> None:
    count = 4 * ranks * accumulate
    costs = samples(count, round(share * count), seed)
    more = {"budgets": (tiles, None), "accumulate_from": accumulate}
    batch = plan(costs, ranks, "auto", **more)
    loads = loads_of(batch, costs)
    assert loads[:, :, 0].max() <= tiles
    plain = plan(costs, ranks, "auto", all_or_none=None, **more)
    assert len(mixed(batch, costs)) <= max(1, len(mixed(plain, costs)))


@pytest.mark.parametrize("seed", range(8))
def test_images_that_fill_most_of_a_budget_go_where_they_fit(seed: int) -> None:
    """Microbatches of one large image have nothing to exchange: samples move instead."""
    draw = np.random.default_rng(seed)
    costs = samples(128, 0, seed)
    images = draw.permutation(128)[: draw.integers(9, 30)]
    costs[images, 0] = draw.integers(1, 9, len(images))
    batch = plan(costs, 8, "auto", budgets=(10, None), accumulate_from=4)
    assert mixed(batch, costs) == []
    assert loads_of(batch, costs)[:, :, 0].max() <= 10
    assert min(len(m.ordinals) for rank in batch.ranks for m in rank) > 0


@pytest.mark.parametrize("waits", ["microbatch", "step"])
def test_ranks_wait_hardly_longer_for_it(waits: str) -> None:
    costs = samples(64 * 4 * 8, 500)

    def slowest(**more: Any) -> int:
        work = loads_of(plan(costs, 64, 4, waits=waits, **more), costs) @ np.array([307, 1])
        tops = work.max(axis=0).sum() if waits == "microbatch" else work.sum(axis=1).max()
        return int(tops)

    assert mixed(plan(costs, 64, 4, waits=waits, all_or_none=None), costs)
    assert not mixed(plan(costs, 64, 4, waits=waits), costs)
    assert slowest() <= 1.01 * slowest(all_or_none=None)


def test_fewer_images_than_ranks_leave_one_row_mixed() -> None:
    costs = samples(64, 3)
    assert len(mixed(plan(costs, 4, 4), costs)) == 1


def test_one_sample_with_images_in_each_microbatch_cannot_be_spared() -> None:
    # 2 ranks x 2 microbatches of one sample: three have images, and nobody has two
    costs = np.array([[1, 5], [2, 5], [3, 5], [0, 5]])
    assert mixed(plan(costs, 2, 2), costs) == [1]


def test_steps_of_windows_and_epochs_match() -> None:
    costs = samples(4 * 2 * 8 * 6, 150)
    for mode in ("window", "epoch"):
        config = PlanConfig(
            4, 64, 2, ("tiles", "tokens"), (None, 4_000), mode=mode, all_or_none="tiles"
        )  # fmt: skip
        batches = make_planner(config).plan(Window(0, 0, 0, costs, last=True)).batches
        assert len(batches) > 1
        for batch in batches:
            has = [[costs[list(m.ordinals), 0].any() for m in rank] for rank in batch.ranks]
            assert mixed_rows(np.array(has)).size == 0


def test_without_it_plans_and_digests_stay_as_they_were() -> None:
    config = PlanConfig(4, 64, 2, ("tiles", "tokens"), (None, None))
    matched = PlanConfig(4, 64, 2, ("tiles", "tokens"), (None, None), all_or_none="tiles")
    assert config.digest() == "9566a1d319f8a021b8c291f8c4868cea"
    assert matched.digest() != config.digest()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"all_or_none": ""}, "all_or_none is '', allowed is the name of a resource"),
        ({"all_or_none": 3}, "all_or_none is 3, allowed is the name of a resource"),
        ({"all_or_none": "tiles", "grouping": "fixed"}, "needs grouping 'balanced'"),
        ({"all_or_none": "tiles", "partition": "greedy"}, "needs partition 'multi_resource'"),
        ({"all_or_none": "tiles", "work": "padded"}, "work is 'padded'"),
        ({"all_or_none": "tiles", "grouping": "auto"}, "needs grouping 'balanced'"),
        ({"all_or_none": "tiles", "dispatch": "images"}, "travels to other ranks"),
    ],
)
def test_what_it_contradicts_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flat_balance(**options)


def test_a_resource_that_samples_do_not_cost_is_refused() -> None:
    with pytest.raises(ValueError, match="all_or_none names audio, but samples cost tiles, tokens"):
        PlanConfig(2, 8, 1, ("tiles", "tokens"), (None, None), all_or_none="audio")
