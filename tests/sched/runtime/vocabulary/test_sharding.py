import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.sched.runtime.vocabulary.shard import Sharding


@given(st.integers(1, 5000), st.integers(1, 64))
def test_every_row_is_on_one_rank_and_shards_are_even_and_equal(size: int, ranks: int) -> None:
    sharding = Sharding(size, ranks)
    assert sharding.rows % 2 == 0
    held = [
        row
        for rank in range(ranks)
        for row in range(sharding.start(rank), sharding.start(rank) + sharding.real(rank))
    ]
    assert held == list(range(size))
    # The least multiple of twice the ranks.
    assert 0 <= ranks * sharding.rows - size < 2 * ranks


@pytest.mark.parametrize(("size", "ranks"), [(0, 4), (10, 0)])
def test_nothing_to_divide_is_refused(size: int, ranks: int) -> None:
    with pytest.raises(ValueError, match="give at least one each"):
        Sharding(size, ranks)
