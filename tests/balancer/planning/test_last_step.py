"""What an epoch's last step does with samples that do not divide: PlanConfig.last_step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counterpoise.balancer.planning.planner import make_planner
from counterpoise.balancer.planning.problem.config import PlanConfig, Planned, Window


def planned(count: int, ranks: int, rows: int, batch_size: int, **more: Any) -> Planned:
    """Plan `count` samples as the last window of an epoch."""
    counted = more.get("grouping") == "fixed"
    config = PlanConfig(
        ranks, ranks * rows * batch_size, rows, ("n",), (None,),
        batch_size=batch_size if counted else None, counts=None if counted else "equal", **more,
    )  # fmt: skip
    costs = np.random.default_rng(count).integers(1, 50, (count, 1))
    return make_planner(config).plan(Window(0, 3, 100, costs, last=True))


def sizes(found: Planned) -> list[list[int]]:
    return [
        [len(each.ordinals) for each in rank] for batch in found.batches for rank in batch.ranks
    ]


GROUPED = st.sampled_from([{}, {"padded": ("n",)}, {"grouping": "fixed", "partition": "given"}])


@given(count=st.integers(1, 70), ranks=st.integers(1, 5), rows=st.integers(1, 4), how=GROUPED)
@settings(max_examples=60, deadline=None)
def test_even_keeps_the_largest_multiple_and_leaves_out_the_last(
    count: int, ranks: int, rows: int, how: Any
) -> None:
    count = min(count, ranks * rows * 4)
    found = planned(count, ranks, rows, 4, last_step="even", **how)
    kept = count // (ranks * rows) * ranks * rows or count // ranks * ranks
    flat = [size for rank in sizes(found) for size in rank]
    given = sorted(o for b in found.batches for r in b.ranks for each in r for o in each.ordinals)
    assert given == list(range(100, 100 + kept))
    assert len(set(flat)) <= 1
    assert 0 not in flat
    assert found.left_out == count - kept < ranks * rows
    if kept < ranks * rows:
        assert all(len(rank) == count // ranks for rank in sizes(found))


@given(count=st.integers(1, 70), ranks=st.integers(1, 5), rows=st.integers(1, 4), how=GROUPED)
@settings(max_examples=60, deadline=None)
def test_short_leaves_nothing_out_and_sizes_differ_by_one(
    count: int, ranks: int, rows: int, how: Any
) -> None:
    count = min(count, ranks * rows * 4)
    found = planned(count, ranks, rows, 4, last_step="short", **how)
    flat = [size for rank in sizes(found) for size in rank]
    assert sum(flat) == count
    assert found.left_out == 0
    assert max(flat) - min(flat) <= 1
    assert 0 not in flat or count < ranks


@pytest.mark.parametrize(("last", "kept"), [("whole", 23), ("even", 16), ("short", 23)])
def test_the_configuration_says_beforehand_what_a_last_step_keeps(last: Any, kept: int) -> None:
    config = PlanConfig(4, 64, 4, ("n",), (None,), last_step=last)
    assert (config.last_kept(23), config.last_rows(23)) == (kept, 4)
    assert (config.last_kept(7), config.last_rows(7)) == (
        (4, 1) if last == "even" else (7, config.last_rows(7))
    )
    assert config.count_steps(64 + 3) == (1 if last == "even" else 2)


def test_auto_is_found_in_data_and_no_plan_by_itself() -> None:
    with pytest.raises(ValueError, match="give it to DataLoader"):
        PlanConfig(2, 8, 1, ("n",), (None,), "auto")
