"""`cp.partition_across`: the same deal on all ranks, and rows that arrive as it says."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import counterpoise as cp
from tests.sched.runtime.pool import Pool

COUNTS = (5, 0, 9, 30)  # of each rank's items


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(len(COUNTS))
    yield made
    made.close()


def _costs(rank: int) -> list[int]:
    return np.random.default_rng(rank).integers(10, 2000, COUNTS[rank]).tolist()


OPTIONS: list[dict[str, Any]] = [
    {}, {"counts": "free", "budgets": 4000}, {"remainder": "repeat"}, {"remainder": "drop"},
]  # fmt: skip


def _swap(rank: int, options: dict[str, Any]) -> Any:
    costs = _costs(rank)
    dealt = cp.partition_across(
        torch.tensor(costs), groups=[f"{k % 3}" for k in range(len(costs))], keep_groups="spread",
        **options,
    )  # fmt: skip
    rows = torch.tensor(costs, dtype=torch.int64)[:, None].repeat(1, 2)
    return dealt.partition.ranks, dealt.swap(rows)[:, 0].tolist()


@pytest.mark.parametrize("options", OPTIONS)
def test_rows_arrive_as_the_deal_says(pool: Pool, options: dict[str, Any]) -> None:
    everything = [cost for rank in range(4) for cost in _costs(rank)]
    groups = [f"{k % 3}" for count in COUNTS for k in range(count)]
    alone = cp.partition(everything, 4, groups=groups, keep_groups="spread", **options)
    for rank, (ranks, received) in enumerate(pool.run(_swap, options)):
        assert ranks == alone.ranks
        assert received == [everything[k] for k in ranks[rank]]


def _disagree(rank: int) -> list[str]:
    messages = []
    for costs, budgets in (([1, 2], 8 + rank % 2), ([1, 9 + rank], 11)):
        with pytest.raises(ValueError, match=r"partition_across|item") as caught:
            cp.partition_across(costs, budgets=budgets)
        messages.append(str(caught.value))
    return messages


def test_what_is_wrong_on_one_rank_is_an_error_on_all(pool: Pool) -> None:
    for differ, item in pool.run(_disagree):
        assert "differs on rank 0" in differ
        assert "'budgets': 8" in differ
        assert "'budgets': 9" in differ
        assert "item 7 has 12 tokens, more than a microbatch's budget 11" in item


def _shift(rank: int) -> str:
    with pytest.raises(ValueError, match="one an item") as caught:
        cp.partition_across([1, 2, 3], loads=[1] * (2 + 2 * (rank % 2)))
    return str(caught.value)


def test_lists_that_make_up_for_each_other_on_ranks_are_refused(pool: Pool) -> None:
    assert all("rank 0 gives lists of" in message for message in pool.run(_shift))


def test_one_process_needs_no_group() -> None:
    dealt = cp.partition_across({"tokens": [3, 1, 2]}, budgets={"tokens": 4})
    assert (dealt.send, dealt.receive) == ([[0, 1, 2]], [3])
    rows = torch.arange(3)[:, None]
    assert dealt.swap(rows)[:, 0].tolist() == dealt.partition.ranks[0]
    with pytest.raises(ValueError, match="4 rows of 3 items"):
        dealt.swap(torch.arange(4)[:, None])
