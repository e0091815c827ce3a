"""Groupings alone: every sample once, budgets hold, nothing dropped in silence."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from benchmarks.baselines.omnibal_groupings import device_group, length_group, random_group
from benchmarks.baselines.published_samplers import megatron_dp_balanced, transformers_rebalance
from counterpoise.balancer.planning.grouping.balanced import balanced
from counterpoise.balancer.planning.grouping.groups import GroupingResult, members
from counterpoise.balancer.planning.grouping.isf import isf
from counterpoise.balancer.planning.problem.loads import (
    budget_array,
    group_loads,
    least_groups,
    oversized,
)

LARGE = 10**12


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int | None, ...]]:
    """Costs and budgets, from tame to hostile: zeros, equals, giants, ten resources."""
    resources = draw(st.integers(1, 10))
    samples = draw(st.integers(0, 40))
    top = draw(st.sampled_from([1, 7, 1000, LARGE]))
    shape = (samples, resources)
    costs = draw(arrays.arrays(np.int64, shape, elements=st.integers(0, top)))
    if samples and draw(st.booleans()):
        costs[draw(st.integers(0, samples - 1))] = LARGE
    budget = st.one_of(st.none(), st.integers(1, 3 * top))
    return costs, tuple(draw(st.lists(budget, min_size=resources, max_size=resources)))


def check(found: GroupingResult, costs: np.ndarray, budgets: tuple[int | None, ...]) -> None:
    assert found.group_of.min(initial=0) >= 0
    assert set(found.group_of.tolist()) <= set(range(found.groups))
    limits = budget_array(budgets)
    loads = group_loads(costs, found.group_of, found.groups)
    over = oversized(costs, limits)
    assert found.oversize.tolist() == np.flatnonzero(over).tolist()
    alone = set(found.group_of[over].tolist())
    assert len(alone) == over.sum()
    for group, load in enumerate(loads):
        assert group in alone or (load <= limits).all()


def test_samples_of_just_their_budget_need_no_more_groups_than_there_are() -> None:
    """Scaled costs are rounded up and budgets down; steps tried one group more for ever."""
    budget = 2**24 + 1
    costs = np.array([[budget, 5], [budget - 1, 2**23], [7, 2**23 - 1], [budget, 3]])
    found = balanced(costs, (budget, 2**23), parts=4)
    check(found, costs, (budget, 2**23))
    assert found.groups == 4


@given(problem=problems(), seed=st.integers(0, 3))
@settings(max_examples=80, deadline=None)
def test_balanced_and_isf_group_all_within_budgets(
    problem: tuple[np.ndarray, tuple[int | None, ...]], seed: int
) -> None:
    costs, budgets = problem
    check(balanced(costs, budgets, seed=seed), costs, budgets)
    check(isf(costs, budgets, seed=seed), costs, budgets)


@given(problem=problems(), parts=st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_balanced_uses_no_more_groups_than_it_needs_when_given_room(
    problem: tuple[np.ndarray, tuple[int | None, ...]], parts: int
) -> None:
    costs, budgets = problem
    check(balanced(costs, budgets, parts=parts), costs, budgets)
    roomy = balanced(costs, budgets, parts=parts).groups
    assert roomy <= max(parts, len(costs) + parts)


@given(problem=problems(), seed=st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_the_order_of_samples_does_not_matter(
    problem: tuple[np.ndarray, tuple[int | None, ...]], seed: int
) -> None:
    costs, budgets = problem
    order = np.random.default_rng(seed).permutation(len(costs))
    one, other = balanced(costs, budgets).group_of, balanced(costs[order], budgets).group_of
    assert contents(costs, one) == contents(costs[order], other)


def contents(costs: np.ndarray, group_of: np.ndarray) -> list[list[list[int]]]:
    """The groups as sorted lists of their samples' costs."""
    groups = members(group_of, int(group_of.max(initial=-1)) + 1)
    return sorted(sorted(costs[group].tolist()) for group in groups)


def test_isf_reports_what_it_leaves_and_flushes_it() -> None:
    rng = np.random.default_rng(0)
    costs = np.stack([rng.integers(1, 6, 2000), rng.integers(40, 4000, 2000)], axis=1)
    costs[7] = (99, 1)
    kept = isf(costs, (9, 4096), flush=False)
    flushed = isf(costs, (9, 4096))
    inside = kept.group_of >= 0
    assert len(kept.left_over) > 0
    assert np.array_equal(np.flatnonzero(~inside), np.union1d(kept.left_over, kept.oversize))
    assert np.array_equal(kept.group_of[inside], flushed.group_of[inside])
    assert (flushed.group_of >= 0).all()
    loads = group_loads(costs, kept.group_of, kept.groups)
    assert ((loads[:, 0] >= 9) | (loads[:, 1] >= 4096 - 128)).all()


def test_balanced_is_close_to_the_bound_and_even() -> None:
    rng = np.random.default_rng(0)
    costs = np.stack([rng.integers(1, 6, 4096), rng.integers(40, 1600, 4096)], axis=1)
    found = balanced(costs, (14, 4096))
    assert found.groups <= 1.03 * least_groups(costs, budget_array((14, 4096)))
    loads = group_loads(costs, found.group_of, found.groups)
    assert (loads.std(axis=0) / loads.mean(axis=0) < 0.15).all()


@pytest.mark.parametrize("group", [random_group, length_group, device_group])
def test_counted_groups_hold_each_sample_once(group: Callable[..., np.ndarray]) -> None:
    sizes = np.random.default_rng(0).integers(0, 50, 40)
    rows = group(sizes, ranks=2, samples=4, seed=1)
    assert rows.shape == (5, 2, 4)
    assert sorted(rows.ravel()) == list(range(40))


def test_lengths_are_alike_in_a_microbatch_or_across_ranks() -> None:
    sizes = np.random.default_rng(0).permutation(40)
    inside = sizes[length_group(sizes, ranks=2, samples=4, seed=1)]
    assert (np.ptp(inside, axis=2) == 3).all()
    across = np.sort(sizes[device_group(sizes, ranks=2, samples=4, seed=1)], axis=2)
    assert (np.abs(across[:, 0] - across[:, 1]) == 1).all()


def test_megatron_packs_in_order_and_fills_up_the_ranks() -> None:
    tokens = np.random.default_rng(0).integers(1, 50, 101)
    groups = megatron_dp_balanced(tokens, ranks=8, budget=100)
    assert len(groups) % 8 == 0
    assert sorted(k for group in groups for k in group) == list(range(101))
    assert all(tokens[group].sum() <= 100 for group in groups)
    with pytest.raises(ValueError, match="too few"):
        megatron_dp_balanced(tokens[:3], ranks=8, budget=100)


@given(samples=st.integers(1, 60), ranks=st.integers(1, 4), accumulate=st.integers(1, 4))
@settings(deadline=None)
def test_transformers_rule_keeps_all_samples(samples: int, ranks: int, accumulate: int) -> None:
    tokens = np.random.default_rng(samples).integers(1, 500, samples)
    groups = transformers_rebalance(tokens, ranks, accumulate)
    assert len(groups) == ranks * accumulate
    assert sorted(k for group in groups for k in group) == list(range(samples))
    assert sum(not group for group in groups) == max(0, ranks * accumulate - samples)
