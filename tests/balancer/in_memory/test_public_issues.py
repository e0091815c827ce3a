"""`cp.partition` on the batches of rollouts that ended jobs in public issues of RL programs."""

import numpy as np
import pytest

import counterpoise as cp
from counterpoise.balancer.in_memory.partition import Partition
from tests.balancer.in_memory.problems import VERL, draw_lengths


def _lengths(items: int, kind: str = "tail") -> list[int]:
    return draw_lengths(kind, items, np.random.default_rng(0)).tolist()


def _check_all_there(dealt: Partition, items: int) -> None:
    assert sorted(item for rank in dealt.ranks for item in rank) == list(range(items))
    assert len({len(rank) for rank in dealt.microbatches}) == 1


def test_206_samples_on_4_ranks() -> None:
    """miles#969 and #970, slime#1823: an assertion where invalid samples were taken out."""
    dealt = cp.partition(_lengths(206, "lognormal"), 4)
    _check_all_there(dealt, 206)
    assert sorted(len(rank) for rank in dealt.ranks) == [51, 51, 52, 52]
    assert dealt.imbalance < 1.001


def test_fewer_samples_than_ranks() -> None:
    """miles#1356: an assertion where most samples were invalid."""
    dealt = cp.partition([700, 50, 300], 4)
    _check_all_there(dealt, 3)
    assert max(len(rank) for rank in dealt.ranks) == 1


def test_budgets_hold_where_the_sum_would_fit_in_fewer_microbatches() -> None:
    """verl#7553: 8 samples of 7 tokens in 7 microbatches of at most 8 tokens, one of them of 14."""
    dealt = cp.partition([7] * 8, 1, budgets=8)
    assert sorted(dealt.microbatches[0]) == [[item] for item in range(8)]


@pytest.mark.parametrize("kind", ["lognormal", "tail"])
def test_budgets_hold_where_work_is_not_tokens(kind: str) -> None:
    """verl#6735: microbatches of even work by attention had more tokens than fit."""
    lengths = np.minimum(_lengths(1024, kind), 8000)
    dealt = cp.partition(lengths, 8, budgets=8192, work=VERL)
    _check_all_there(dealt, 1024)
    assert max(lengths[cell].sum() for rank in dealt.microbatches for cell in rank) <= 8192


def test_ranks_have_as_many_microbatches_and_none_is_empty() -> None:
    """EasyR1#11004, slime#1838, #1860: each rank counted alone, and light ones had empty ones."""
    lengths = sorted(np.minimum(_lengths(256), 16_000), reverse=True)  # one rank's were all long
    dealt = cp.partition(lengths, 8, counts="free", budgets=16_384)
    _check_all_there(dealt, 256)
    assert all(cell for rank in dealt.microbatches for cell in rank)


def test_5_samples_in_microbatches_of_2_on_2_ranks() -> None:
    """miles#2197: 3 microbatches do not divide by 2 ranks."""
    costs = {"samples": [1] * 5, "tokens": [900, 700, 500, 300, 100]}
    dealt = cp.partition(costs, 2, budgets={"samples": 2}, work=VERL)
    _check_all_there(dealt, 5)
    assert [len(rank) for rank in dealt.microbatches] == [2, 2]
    assert max(len(cell) for rank in dealt.microbatches for cell in rank) <= 2


def test_more_microbatches_than_samples_drop_none() -> None:
    """slime#2065: aligned to 2 stages, 8 microbatches for 5 samples; an assertion, then a drop."""
    dealt = cp.partition([8000, 7000, 7500, 6000, 6500], 4, budgets=8192, multiple_of=2)
    _check_all_there(dealt, 5)
    assert {len(rank) for rank in dealt.microbatches} == {2}


def test_one_answer_longer_than_all_others_of_its_rank() -> None:
    """verl#3605: the rank that has it is waited for; it takes nothing else, or what counts ask."""
    lengths = [30_000, *[100 + item % 7 for item in range(127)]]
    free = cp.partition(lengths, 8, counts="free")
    assert [0] in free.ranks
    assert free.work.max() == free.bound == 30_000
    equal = cp.partition(lengths, 8)
    assert {len(rank) for rank in equal.ranks} == {16}
    assert equal.work.max() <= 1.001 * equal.bound


def test_an_answer_over_the_budget_is_named() -> None:
    """verl#3088: an assertion, by the padded length."""
    with pytest.raises(ValueError, match=r"item 2 .*9,?000"):
        cp.partition([100, 200, 9000, 50], 2, budgets=8192)
    padded = cp.partition([100, 200, 8000, 50], 2, budgets=8192)  # in rows as long as the longest
    _check_all_there(padded, 4)


def test_groups_that_ranks_do_not_divide_stay_whole() -> None:
    """verl#4368's PrefixGrouper: as many groups a rank, a group's samples one after another."""
    prompts = [f"prompt {item % 13}" for item in range(52)]
    lengths = _lengths(52, "lognormal")
    dealt = cp.partition(lengths, 4, counts="free", groups=prompts)
    _check_all_there(dealt, 52)
    homes = [{prompts[item] for item in rank} for rank in dealt.ranks]
    assert sum(map(len, homes)) == 13
    assert dealt.imbalance < 1.05
    with pytest.raises(ValueError, match="groups"):
        cp.partition(lengths, 4, groups=prompts)
