"""Images over encoder ranks: as even as the bound says, and no more moved than needed."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from counterpoise.balancer.planning.partition.by_name import greedy
from counterpoise.balancer.planning.partition.images import image_loads, spread_images

RANKS = 4
IMAGES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, RANKS - 1)), max_size=60)


@given(images=IMAGES)
@settings(deadline=None, max_examples=200)
def test_no_plan_is_less_even_than_whole_samples_or_longest_first(
    images: list[tuple[int, int]],
) -> None:
    costs, homes = ([image[k] for image in images] for k in range(2))
    to = spread_images(costs, homes, RANKS)
    assert to.shape == (len(images),)
    assert all(0 <= rank < RANKS for rank in to.tolist())
    largest = max(image_loads(costs, to, RANKS))
    assert sum(image_loads(costs, to, RANKS)) == sum(costs)
    assert largest <= max(image_loads(costs, homes, RANKS))
    assert largest <= max(image_loads(costs, greedy(costs, RANKS), RANKS))


@given(homes=st.lists(st.integers(0, RANKS - 1), max_size=80))
@settings(deadline=None, max_examples=200)
def test_tiles_are_even_to_one_and_only_the_excess_moves(homes: list[int]) -> None:
    to = spread_images([1] * len(homes), homes, RANKS)
    level = -(-len(homes) // RANKS)
    before = np.bincount(np.array(homes, dtype=np.int64), minlength=RANKS)
    assert max(image_loads([1] * len(homes), to, RANKS)) == level
    moved = sum(a != b for a, b in zip(to.tolist(), homes, strict=True))
    assert moved == np.maximum(before - level, 0).sum()


def test_even_images_stay_where_they_are() -> None:
    assert spread_images([5, 2, 5, 2], [1, 1, 0, 0], 2).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("homes", [[0, 2], [-1, 0], [0]])
def test_homes_must_be_ranks_of_the_images(homes: list[int]) -> None:
    with pytest.raises(ValueError, match="homes"):
        spread_images([1, 1], homes, 2)
