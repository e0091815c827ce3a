"""Costs are packed in few bytes, and rubbish is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.loader.peers import pack_costs, unpack_costs

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


@given(st.binary(max_size=64))
def test_rubbish_is_refused(data: bytes) -> None:
    try:
        rows = unpack_costs(data)
    except ValueError as error:
        assert "not packed costs" in str(error)  # noqa: PT017
    else:
        assert len(pack_costs(rows)) <= len(data)


@pytest.mark.parametrize("cut", [-1, 1])
def test_cut_costs_are_refused(cut: int) -> None:
    data = pack_costs(np.arange(6).reshape(3, 2))
    with pytest.raises(ValueError, match="bytes where 13 are needed"):
        unpack_costs(data[:cut] if cut < 0 else data + b"x")


def test_other_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="float64 of shape"):
        pack_costs(np.zeros((2, 2)))  # type: ignore[arg-type]
