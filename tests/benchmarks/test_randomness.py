"""Measures of an order's randomness."""

import numpy as np

from benchmarks.planning import randomness


def test_a_rank_of_even_loads_has_no_bias() -> None:
    assert randomness.rank_bias(np.full((3, 4), 7)) == 0
    assert randomness.rank_bias(np.array([[3, 1], [1, 3], [5, 3]])) == 0.125


def test_a_shuffle_has_chi_square_one_and_clusters_more() -> None:
    rng = np.random.default_rng(0)
    lengths, sources = rng.integers(1, 1000, 20_000), rng.integers(0, 5, 20_000)
    cells = randomness.kinds(lengths, sources)
    step_of = rng.permutation(20_000) // 200
    plain, error = randomness.chi_square(cells, step_of)
    assert abs(plain - 1) < 4 * error
    clustered = np.empty(20_000, dtype=np.int64)
    clustered[np.argsort(sources, kind="stable")] = np.arange(20_000) // 200
    assert randomness.chi_square(cells, clustered)[0] > 5
    assert abs(randomness.drift(lengths, step_of)) < 0.4
    rising = np.empty(20_000, dtype=np.int64)
    rising[np.argsort(lengths, kind="stable")] = np.arange(20_000) // 200
    assert randomness.drift(lengths, rising) > 0.95
