"""The rows of each rank."""

from hypothesis import given, strategies as st

from counterpoise.sched.runtime.vocabulary.shard import Sharding


@given(st.integers(1, 5000), st.integers(1, 64))
def test_every_row_is_on_one_rank_and_shards_are_even_and_equal(size: int, ranks: int) -> None:
    shards = [Sharding(size, ranks, rank) for rank in range(ranks)]
    rows = shards[0].rows
    assert rows % 2 == 0
    held = [row for own in shards for row in range(own.start, own.start + own.real)]
    assert held == list(range(size))
    # The least multiple of twice the ranks.
    assert 0 <= ranks * rows - size < 2 * ranks
