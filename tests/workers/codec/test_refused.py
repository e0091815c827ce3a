"""What the codec has not made does not come in."""

import msgpack
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.workers.codec.fields import CodecError
from counterpoise.workers.codec.frames import (
    decode,
    decode_packed,
    encode,
    payload_of,
)
from tests.workers.codec.values import fields


@pytest.mark.parametrize("value", [[1], [torch.ones(1)]])
def test_an_object_is_refused_unless_it_is_allowed(value):
    header, buffers = encode(value)
    with pytest.raises(CodecError, match="another host"):
        decode(header, payload_of(buffers))


@pytest.mark.parametrize(
    "layout",
    [
        None,
        {"a": 1},
        [["x"]],
        [["x", "array"]],
        [[3, "number", 4]],
        [["x", "number", 1 << 63]],
        [["x", "number", True]],
        [["x", "number", "3"]],
        [["x", "pickle", 8]],
        [["x", "array", "|O", [1]]],
        [["x", "array", "<f4", [-1]]],
        [["x", "array", "<f4", [2, 2]]],
        [["x", "array", "<f4", [1 << 40, 1 << 40, 1 << 40]]],
        [["x", "array", "<f4", [0, 1 << 62]]],
        [["x", "array", "<f4", [1.0]]],
        [["x", "array", "<f4", [1] * 9]],
        [["x", "bytes", 9]],
        [["x", "bytes", 7]],
        [["x", "bytes", True]],
        [["x" * 300, "bytes", 8]],
        [["x", "bytes", 8], ["x", "number", 1]],
        [["x", "number", 1]] * 300,
        [["x", "text", 8]],
    ],
)
def test_malformed_fields_are_refused(layout):
    with pytest.raises(CodecError):
        decode({"fields": layout}, b"\xff" * 8)
    with pytest.raises(CodecError):
        decode_packed(msgpack.packb({"fields": layout}), b"\xff" * 8)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda nest: {"fields": [["x", "array", nest]]},
        lambda nest: {"fields": [["x", "array", "<f4", [nest]]]},
        lambda nest: {"fields": [["x", "bytes", nest]]},
        lambda nest: {"fields": [["x", "number", nest]]},
        lambda nest: {"fields": nest},
    ],
)
def test_a_header_as_deep_as_msgpack_reads_is_refused_in_few_words(wrap):
    """repr() of 1,000 nested lists is a RecursionError."""
    header = wrap(msgpack.unpackb(b"\x91" * 1000 + b"\xc0"))
    with pytest.raises(CodecError) as refused:
        decode(header, b"\xff" * 8, allow_object=True)
    assert len(str(refused.value)) < 200


def test_an_endless_kind_is_refused_in_few_words():
    with pytest.raises(CodecError) as refused:
        decode({"fields": [["x", "k" * 1_000_000, 1]]}, b"")
    assert len(str(refused.value)) < 200


@given(
    st.recursive(
        st.integers() | st.text() | st.booleans() | st.none() | st.floats() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.binary(max_size=200),
)
def test_whatever_a_stranger_sends_is_a_codec_error(header, payload):
    for candidate in (header, {"fields": header}, {"fields": [header]}, {"object": header}):
        try:
            decode(candidate, payload)
        except CodecError:
            continue
        assert candidate in ({"fields": []},), candidate


@given(fields, st.data())
def test_a_damaged_layout_never_reads_beyond_the_payload(value, data):
    header, buffers = encode(value)
    payload = b"".join(buffers)
    cut = data.draw(st.integers(0, max(0, len(payload) - 1)))
    if payload:
        with pytest.raises(CodecError):
            decode(header, payload[:cut])
