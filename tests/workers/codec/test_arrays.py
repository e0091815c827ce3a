"""Arrays of all types, shapes and orders are sent and read."""

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.workers.codec.fields import holds_fields
from counterpoise.workers.codec.frames import (
    decode_packed,
    encode,
    encode_packed,
    payload_of,
)
from tests.workers.codec.values import same


@pytest.mark.parametrize("shape", [(0, 1 << 41), (1,) * 9])
def test_an_array_that_no_reader_takes_is_no_field(shape):
    assert not holds_fields({"x": np.ndarray(shape, np.uint8)})


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
def test_arrays_in_any_order_come_back(value):
    header, buffers = encode(value)
    packed, others = encode_packed(value)
    assert packed == msgpack.packb(header)
    assert b"".join(others) == b"".join(buffers)
    same(value, decode_packed(packed, payload_of(others)))


def test_an_array_is_not_copied():
    array = np.zeros(100, np.uint8)
    (buffer,) = encode_packed({"a": array})[1]
    assert np.shares_memory(np.frombuffer(buffer, np.uint8), array)


class Name(str):
    __slots__ = ()


def test_a_name_that_only_equals_one_that_came_before_is_pickled():
    ids = np.arange(3)
    assert b"fields" in encode_packed({"ids": ids})[0]
    assert b"object" in encode_packed({Name("ids"): ids})[0]
