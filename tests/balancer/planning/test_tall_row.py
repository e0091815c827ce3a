"""Steps with giant samples: one row is as tall as the giant, and the others are shorter."""

import numpy as np
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from counterpoise.balancer.planning.grouping.balanced import balanced
from counterpoise.balancer.planning.grouping.tall_row import waiting, with_tall_row
from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig, Window


def rows_of(costs: np.ndarray, ranks: int, accumulate: int) -> np.ndarray:
    """The work (ranks, accumulate) of the planned step's microbatches."""
    names = ("tokens", "tiles")[: costs.shape[1]]
    config = PlanConfig(ranks, len(costs), accumulate, names, (None,) * costs.shape[1])
    (batch,) = make_planner(config).plan(Window(0, 0, 0, costs, last=True)).batches
    return np.array([[costs[list(m.ordinals), 0].sum() for m in rank] for rank in batch.ranks])


@given(
    costs=arrays.arrays(np.int64, st.tuples(st.integers(12, 60), st.integers(1, 3)),
                        elements=st.integers(0, 50)),
    giant=st.integers(0, 10**9), ranks=st.integers(1, 5), accumulate=st.integers(1, 4),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_every_sample_is_in_a_group_and_every_group_has_one(
    costs: np.ndarray, giant: int, ranks: int, accumulate: int
) -> None:
    costs[0] += giant
    found = with_tall_row(costs, ranks, accumulate, seed=0)
    if found is not None:
        assert sorted(set(found.tolist())) == list(range(ranks * accumulate))
        again = with_tall_row(costs, ranks, accumulate, seed=0)
        assert again is not None
        assert found.tolist() == again.tolist()


def test_the_row_of_a_giant_is_full_and_the_others_are_short() -> None:
    costs = np.random.default_rng(0).integers(50, 150, (8 * 4 * 8, 2))
    costs[7] = 2000  # of 800 a microbatch, if all are alike
    work = rows_of(costs, ranks=8, accumulate=4)
    tops = np.sort(work.max(axis=0))[::-1]
    assert tops[0] == 2000
    assert tops[1:].max() < 500
    assert work.sum() / 8 / tops.sum() > 0.95
    alike = balanced(costs, (None, None), 32, 0).group_of
    tall = with_tall_row(costs, 8, 4, 0)
    assert tall is not None
    assert waiting(costs, tall, 8) * 5 < waiting(costs, alike, 8) * 4


def test_a_sample_of_more_than_the_rest_leaves_a_sample_for_every_microbatch() -> None:
    costs = np.random.default_rng(1).integers(1, 100, (4 * 3 * 6, 1))
    costs[0] = 10**7
    work = rows_of(costs, ranks=4, accumulate=3)
    assert work.min() > 0
    assert np.sort(work.max(axis=0))[1] < costs[1:].sum() // 12  # all shares alike would be more


def test_where_no_sample_stands_out_all_rows_stay_alike() -> None:
    costs = np.random.default_rng(2).integers(50, 150, (4 * 4 * 8, 2))
    assert with_tall_row(costs, 4, 4, seed=0) is None


def test_a_step_of_one_sample_a_microbatch_is_planned() -> None:
    costs = np.array([[40], *([size] for size in range(1, 16))])
    work = rows_of(costs, ranks=4, accumulate=4)
    assert sorted(work.ravel().tolist()) == sorted(costs.ravel().tolist())
