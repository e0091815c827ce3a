"""Samples that are read by columns are those that are decoded one by one, or are not read so."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as shapes

from counterpoise.workers.codec.columns import ColumnReader, Places
from counterpoise.workers.codec.frames import decode_packed, encode_packed, payload_of

TYPES = ["?", "u1", "<i2", "<i4", "<i8", "<f2", "<f8", "<c16"]
Sample = dict[str, np.ndarray[Any, Any]]


@st.composite
def samples_of_one_kind(draw: st.DrawFn) -> list[Sample]:
    """Samples with the same names, types and numbers of dimensions, and any shapes."""
    names = draw(st.lists(st.text(max_size=3), min_size=1, max_size=4, unique=True))
    kind = {name: (draw(st.sampled_from(TYPES)), draw(st.integers(0, 3))) for name in names}
    return [
        {
            name: draw(shapes.arrays(dtype, draw(st.tuples(*[st.integers(0, 5)] * dimensions))))
            for name, (dtype, dimensions) in kind.items()
        }
        for _ in range(draw(st.integers(1, 5)))
    ]


def encoded(samples: Sequence[Any]) -> tuple[list[bytes], list[bytearray]]:
    pairs = [encode_packed(sample) for sample in samples]
    return [header for header, _ in pairs], [payload_of(buffers) for _, buffers in pairs]


def apart(payloads: Sequence[Any]) -> Places:
    """Return the places of payloads that are runs of their own."""
    count = len(payloads)
    return Places(payloads, range(count), [0] * count, [*map(len, payloads)])


def side_by_side(payloads: Sequence[Any], runs: int) -> Places:
    """Return the places of payloads that lie in runs, each at a multiple of 64."""
    run_of = [number % runs for number in range(len(payloads))]
    made, offsets = [bytearray(64) for _ in range(runs)], []
    for number, payload in zip(run_of, payloads, strict=True):
        made[number] += bytes(-len(made[number]) % 64)
        offsets.append(len(made[number]))
        made[number] += payload
    return Places(made, run_of, offsets, [*map(len, payloads)])


def check_read(headers: Sequence[bytes], places: Places, samples: Sequence[Sample]) -> None:
    columns = ColumnReader().read(headers, places)
    assert columns is not None
    assert list(columns) == list(samples[0])
    for name, column in columns.items():
        arrays = [sample[name] for sample in samples]
        assert column.shapes == [array.shape for array in arrays]
        assert {column.dtype} == {array.dtype for array in arrays}
        for piece, array in zip(column.pieces(), arrays, strict=True):
            assert piece.dtype == array.dtype
            np.testing.assert_array_equal(piece, array.reshape(-1))
        np.testing.assert_array_equal(
            column.elements(), np.concatenate([array.reshape(-1) for array in arrays])
        )


@given(samples_of_one_kind(), st.integers(0, 2))
def test_columns_are_the_samples(samples: list[Sample], runs: int) -> None:
    headers, payloads = encoded(samples)
    places = side_by_side(payloads, runs) if runs else apart(payloads)
    check_read(headers, places, samples)


def test_a_reader_follows_samples_from_one_kind_to_another() -> None:
    reader = ColumnReader()
    for samples in ([{"x": np.ones(3)}] * 2, [{"y": np.ones(2, np.int8)}], [{"x": np.ones(1)}]):
        headers, payloads = encoded(samples)
        columns = reader.read(headers, apart(payloads))
        assert columns is not None
        assert list(columns) == list(samples[0])


def test_what_is_read_are_views_of_the_payloads() -> None:
    headers, payloads = encoded([{"x": np.zeros(3, np.int32)}])
    columns = ColumnReader().read(headers, apart(payloads))
    assert columns is not None
    columns["x"].pieces()[0][1] = 7
    assert payloads[0][4] == 7


ONE = {"x": np.ones(2), "y": np.ones(3, np.int8)}


@pytest.mark.parametrize(
    "other",
    [
        {"x": np.ones(2)},
        {"y": np.ones(3, np.int8), "x": np.ones(2)},
        {"x": np.ones(2, np.float32), "y": np.ones(3, np.int8)},
        {"x": np.ones((2, 1)), "y": np.ones(3, np.int8)},
        {"x": np.ones(2), "y": 3},
        {"x": np.ones(2), "y": "text"},
        {"x": np.ones(2), "y": [1]},
        {},
        7,
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_samples_of_several_kinds_are_not_read(other: Any, place: int) -> None:
    samples = [ONE]
    samples.insert(place, other)
    headers, payloads = encoded(samples)
    assert ColumnReader().read(headers, apart(payloads)) is None
    assert ColumnReader().read(headers[place : place + 1] * 2, apart(payloads[:1] * 2)) is None or (
        all(type(value) is np.ndarray for value in dict(other).values())
    )


def test_none_are_not_read() -> None:
    assert ColumnReader().read([], Places((), (), (), ())) is None


def test_payloads_of_another_number_are_not_read() -> None:
    headers, payloads = encoded([ONE, ONE])
    assert ColumnReader().read(headers, apart(payloads[:1])) is None
    assert ColumnReader().read(headers[:1], apart(payloads)) is None


@pytest.mark.parametrize("change", [-1, 1, 64])
def test_payloads_of_another_size_are_not_read(change: int) -> None:
    headers, payloads = encoded([ONE, ONE])
    payloads[1] = bytearray(len(payloads[1]) + change)
    assert ColumnReader().read(headers, apart(payloads)) is None


def test_arrays_that_are_not_aligned_are_not_read() -> None:
    headers, payloads = encoded([ONE])
    run = bytearray(4) + payloads[0]
    assert ColumnReader().read(headers, Places([run], [0], [4], [len(payloads[0])])) is None


@pytest.mark.parametrize(
    "shape", [[0, 1 << 40, 1 << 40], [1 << 40, 0, 1 << 40], [1 << 40] * 8, [1 << 41], [-1], [0] * 9]
)
def test_shapes_that_numpy_may_not_take_are_not_read(shape: list[int]) -> None:
    header = msgpack.packb({"fields": [["x", "array", "|u1", shape]]})
    assert ColumnReader().read([header], apart([b""])) is None


@given(samples_of_one_kind(), st.data())
def test_nothing_is_read_that_is_not_decoded(samples: list[Sample], data: st.DataObject) -> None:
    """A byte of a header, the size or the contents of a payload may have been changed."""
    headers, payloads = encoded(samples)
    victim = data.draw(st.integers(0, len(samples) - 1))
    damaged = bytearray(headers[victim])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    headers[victim] = bytes(damaged)
    places = apart(payloads)
    columns = ColumnReader().read(headers, places)
    if columns is None:
        return
    decoded = [decode_packed(*each) for each in zip(headers, payloads, strict=True)]
    check_read(headers, places, decoded)


def test_headers_are_read_each_by_itself() -> None:
    """Two that make two headers only together are none."""
    headers, payloads = encoded([ONE, ONE])
    whole = b"".join(headers)
    for cut in accumulate([1, 5, len(headers[0]), 3]):
        if cut != len(headers[0]):
            halves = [whole[:cut], whole[cut:]]
            assert ColumnReader().read(halves, apart(payloads)) is None
