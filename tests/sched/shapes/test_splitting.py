"""Layer partition: the bottleneck is the least there is, the rest at least as even as before."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from counterpoise.sched.ir.program import place
from counterpoise.sched.shapes import least_longest_stage, partition

LAYERS = st.lists(st.integers(0, 30), min_size=1, max_size=9)


def stage_times(layers: list[int], sizes: tuple[int, ...]) -> list[int]:
    ends = np.cumsum(sizes)
    return [sum(layers[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def all_partitions(layers: list[int], stages: int) -> list[tuple[int, ...]]:
    cuts = combinations(range(1, len(layers)), stages - 1)
    return [tuple(np.diff([0, *cut, len(layers)]).tolist()) for cut in cuts]


@given(LAYERS, st.integers(1, 5))
def test_no_partition_has_a_shorter_longest_stage(layers: list[int], stages: int) -> None:
    if len(layers) < stages:
        return
    sizes = partition(layers, place(stages))
    assert sum(sizes) == len(layers)
    assert min(sizes) >= 1
    best = min(max(stage_times(layers, other)) for other in all_partitions(layers, stages))
    assert max(stage_times(layers, sizes)) == best


@given(LAYERS, st.integers(1, 5))
def test_with_one_chunk_the_stages_are_as_even_as_can_be(layers: list[int], stages: int) -> None:
    if len(layers) < stages:
        return
    bound = max(stage_times(layers, partition(layers, place(stages))))
    squares = [
        sum(time**2 for time in times)
        for other in all_partitions(layers, stages)
        if max(times := stage_times(layers, other)) == bound
    ]
    mine = stage_times(layers, partition(layers, place(stages)))
    assert sum(time**2 for time in mine) == min(squares)


@pytest.mark.parametrize(("encoder", "chunks"), [(26, 12), (33, 6), (14, 12), (14, 6), (33, 3)])
def test_chunks_are_evened_out_over_the_ranks(encoder: int, chunks: int) -> None:
    """48 small layers before 96 large ones on 8 ranks: nearer to ideal than even stages alone."""
    layers = [encoder] * 48 + [100] * 96

    def bound(sizes: tuple[int, ...]) -> int:
        times = np.array(stage_times(layers, sizes)).reshape(chunks, 8)
        return int(times.sum(axis=0).max() + times.max(axis=1).sum())

    sizes = partition(layers, place(8, chunks))
    stages_alone = partition(layers, tuple(range(8 * chunks)))
    assert max(stage_times(layers, sizes)) == max(stage_times(layers, stages_alone))
    assert bound(sizes) <= bound(stages_alone)


def test_the_dynamic_programme_is_the_published_recurrence() -> None:
    layers = [3, 1, 4, 1, 5, 9, 2, 6]

    def f(count: int, stages: int) -> int:
        if stages == 1:
            return sum(layers[:count])
        ends = range(stages - 1, count)
        return min(max(f(end, stages - 1), sum(layers[end:count])) for end in ends)

    until = np.concatenate(([0], np.cumsum(layers)))
    assert [least_longest_stage(until, m) for m in (1, 2, 3, 4)] == [f(8, m) for m in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("layers", "stages", "message"),
    [([1], 2, "1 layers do not fill 2 stages"), ([1, -1], 2, "a layer takes -1 ns")],
)
def test_what_cannot_be_partitioned(layers: list[int], stages: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        partition(layers, place(stages))
