"""Dicts of arrays are packed and read at once, as any fields are."""

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.workers.codec.arrays import MOST_JOINED_BYTES, read_arrays
from counterpoise.workers.codec.fields import read_layout
from counterpoise.workers.codec.frames import (
    CodecError,
    decode_packed,
    encode,
    encode_packed,
    payload_of,
)
from tests.workers.codec.values import arrays, same


@given(st.dictionaries(st.text(max_size=3), arrays, max_size=4))
def test_arrays_that_are_read_at_once_are_read_as_any_fields(value):
    header, _ = encode_packed(value)
    at_once = read_arrays(header)
    assert at_once == read_layout(msgpack.unpackb(header)["fields"])
    assert at_once.nbytes == len(payload_of(encode(value)[1]))


@pytest.mark.parametrize(
    "field", [["y", "number", 3], ["y", "text", 3], ["x", "array", "|u1", [1]]]
)
def test_what_is_not_of_different_arrays_only_is_not_read_at_once(field):
    assert read_arrays(msgpack.packb({"fields": [["x", "array", "|u1", [2]]]})) is not None
    assert read_arrays(msgpack.packb({"fields": [["x", "array", "|u1", [2]], field]})) is None
    assert read_arrays(msgpack.packb({"fields": [], "more": 1})) is None


@pytest.mark.parametrize("shape", [(0, 1 << 41), (1,) * 9])
def test_an_array_that_no_reader_takes_is_not_sent(shape):
    with pytest.raises(CodecError, match="shape"):
        encode_packed({"x": np.ndarray(shape, np.uint8)})


@st.composite
def laid_out(draw):
    """Arrays of few names, types and lengths, that come again: in C order, others, or strided."""
    made = {}
    for name in draw(st.lists(st.sampled_from(["ids", "pixels", "n"]), unique=True)):
        dtype = draw(st.sampled_from(["<i4", "|u1", "<f8", "<c16", "|b1"]))
        rows = draw(st.sampled_from([0, 1, 3, 700]))
        array = np.arange(rows * 4).reshape(rows, 4).astype(dtype)
        how = draw(st.sampled_from(["whole", "turned", "some", "flat", "number", "frozen"]))
        made[name] = {
            "whole": array,
            "turned": array.T,
            "some": array[::2, 1:],
            "flat": array.reshape(-1),
            "number": np.array(rows).astype(dtype),
            "frozen": np.frombuffer(array.tobytes(), dtype),
        }[how]
    return made


@given(laid_out())
def test_arrays_in_any_order_are_packed_as_any_fields(value):
    header, buffers = encode(value)
    packed, others = encode_packed(value)
    assert packed == msgpack.packb(header)
    assert b"".join(others) == b"".join(buffers)
    same(value, decode_packed(packed, payload_of(others)))


def test_a_small_payload_is_a_copy_in_one_buffer_and_a_large_one_the_samples_memory():
    small, large = np.zeros(10, np.uint8), np.zeros(MOST_JOINED_BYTES + 1, np.uint8)
    (joined,) = encode_packed({"a": small, "b": small})[1]
    assert type(joined) is bytes
    first, _, second = encode_packed({"a": large, "b": small})[1]
    assert np.shares_memory(np.frombuffer(first, np.uint8), large)
    assert np.shares_memory(np.frombuffer(second, np.uint8), small)


@pytest.mark.parametrize("first", [(0, 1 << 41), (1,) * 9])
def test_a_shape_that_no_reader_takes_is_no_error_beside_what_is_pickled(first):
    value = {"x": np.ndarray(first, np.uint8), "y": [1]}
    assert b"object" in encode_packed(value)[0]


class Name(str):
    __slots__ = ()


def test_a_name_that_only_equals_one_that_came_before_is_pickled():
    ids = np.arange(3)
    assert b"fields" in encode_packed({"ids": ids})[0]
    assert b"object" in encode_packed({Name("ids"): ids})[0]
