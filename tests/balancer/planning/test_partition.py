"""Partitions: all assigned once, Graham's bound, equal counts, evenness in every resource."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counterpoise.balancer.planning.partition.by_name import assign_groups, greedy
from counterpoise.balancer.planning.problem.loads import alike, group_loads
from counterpoise.balancer.planning.problem.options import NAMES

SIZES = st.lists(st.integers(0, 1000), min_size=0, max_size=40)
HUGE = st.lists(st.integers(0, 10**12), min_size=0, max_size=20)


def optimum(sizes: list[int], parts: int) -> int:
    """The least possible largest sum, by trying everything."""

    @cache
    def best(k: int, loads: tuple[int, ...]) -> int:
        if k == len(sizes):
            return max(loads)
        return min(
            best(k + 1, tuple(sorted((*loads[:p], loads[p] + sizes[k], *loads[p + 1 :]))))
            for p in range(parts)
        )

    return best(0, (0,) * parts)


@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=9), parts=st.integers(1, 4))
@settings(deadline=None, max_examples=150)
def test_greedy_is_within_four_thirds_of_the_optimum(sizes: list[int], parts: int) -> None:
    top = int(group_loads(np.array(sizes)[:, None], greedy(sizes, parts), parts).max())
    assert 3 * parts * top <= (4 * parts - 1) * optimum(sizes, parts)


@given(sizes=st.one_of(SIZES, HUGE), parts=st.integers(1, 9), equal=st.booleans())
@settings(deadline=None, max_examples=40)
def test_items_are_assigned_to_parts_that_exist(sizes: list[int], parts: int, equal: bool) -> None:
    part_of = greedy(sizes, parts, equal=equal)
    assert part_of.shape == (len(sizes),)
    assert ((part_of >= 0) & (part_of < parts)).all()
    if equal:
        counts = np.bincount(part_of, minlength=parts)
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("partition", [p for p in NAMES["partition"] if p != "given"])
def test_every_partition_assigns_groups_to_ranks(partition: str) -> None:
    loads = np.random.default_rng(0).integers(1, 50, (24, 2))
    assigned = assign_groups(partition, loads, ranks=4, seed=3)
    assert assigned.shape == (4, 6)
    assert sorted(assigned.ravel()) == list(range(24))


def test_empty_groups_come_last() -> None:
    loads = np.array([[3, 1], [0, 0], [2, 2], [0, 0]])
    for partition in ("multi_resource", "greedy"):
        assigned = assign_groups(partition, loads, ranks=2)
        assert (loads[assigned[:, 1]] == 0).all()


def test_groups_side_by_side_are_alike() -> None:
    rng = np.random.default_rng(0)
    loads = np.stack([rng.integers(1, 9, 64), rng.integers(100, 4000, 64)], axis=1)
    rows = loads[alike(loads, 8)][..., 0]
    assert (np.diff(rows.ravel()) <= 0).all()


def test_an_uneven_assignment_is_refused() -> None:
    with pytest.raises(ValueError, match="split or pad"):
        assign_groups("greedy", np.ones((5, 1), dtype=np.int64), ranks=2)
