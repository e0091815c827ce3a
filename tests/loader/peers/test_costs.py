"""Costs are packed in few bytes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.loader.peers.costs import pack_costs, unpack_costs

VALUES = st.integers(-(1 << 63), (1 << 63) - 1)
ROWS = st.integers(0, 4).flatmap(
    lambda n: st.lists(st.lists(VALUES, min_size=n, max_size=n), max_size=9).map(
        lambda rows: np.array(rows, np.int64).reshape(len(rows), n)
    )
)


@given(ROWS)
def test_costs_survive_packing(rows: np.ndarray) -> None:
    found = unpack_costs(pack_costs(rows))
    assert found.dtype == np.int64
    assert found.shape == rows.shape
    assert (found == rows).all()


def test_a_column_takes_the_bytes_that_it_needs() -> None:
    rows = np.array([[100, 30_000, 1 << 20, 1 << 40]] * 64)
    assert len(pack_costs(rows)) == 4 + 1 + 4 + 64 * (1 + 2 + 4 + 8)
