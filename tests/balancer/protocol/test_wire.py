"""The wire format: every message comes back as it was sent, anything else is a WireError."""

from dataclasses import fields, is_dataclass
from typing import get_args, get_origin, get_type_hints

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.balancer.protocol.messages import KINDS, PROTOCOL_VERSION, Bye, DecodeDone
from counterpoise.balancer.protocol.wire import MAX_CONTAINER, WireError, decode, encode

VALUES = {
    int: st.integers(-(1 << 63) + 1, (1 << 63) - 1),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=20),
    bool: st.booleans(),
}
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
    | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)  # fmt: skip


def values(hint):
    """Return a strategy for an annotation."""
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return st.builds(hint, **{field.name: values(hints[field.name]) for field in fields(hint)})
    if hint in VALUES:
        return VALUES[hint]
    assert get_origin(hint) is tuple
    assert get_args(hint)[1] is ...
    return st.lists(values(get_args(hint)[0]), max_size=3).map(tuple)


def frames_of(message):
    carried = {"none": 0, "one": 1}.get(message.PAYLOADS)
    return len(message.items) if carried is None else carried


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_comes_back_as_it_was_sent(name):
    @settings(max_examples=15)
    @given(values(KINDS[name]))
    def check(message):
        assert decode(encode(message), frames_of(message)) == message

    check()


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_takes_only_the_payload_frames_that_it_says(name):
    @settings(max_examples=5)
    @given(values(KINDS[name]), st.integers(0, 70_000))
    def check(message, frames):
        if frames != frames_of(message):
            with pytest.raises(WireError, match="payload frames"):
                decode(encode(message), frames)

    check()


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_random_bytes_never_get_through(data):
    with pytest.raises(WireError):
        decode(data, 0)


@settings(max_examples=300)
@given(PLAIN)
def test_random_values_never_get_through(value):
    with pytest.raises(WireError):
        decode(msgpack.packb(value), 0)


@settings(max_examples=300)
@given(st.sampled_from(sorted(KINDS)), st.lists(PLAIN, max_size=8), st.integers(0, 3))
def test_random_fields_make_a_message_or_an_error(name, parts, frames):
    header = msgpack.packb([PROTOCOL_VERSION, name, *parts])
    try:
        message = decode(header, frames)
    except WireError:
        return
    assert decode(encode(message), frames) == message


@settings(max_examples=100)
@given(st.data())
def test_a_damaged_message_makes_a_message_or_an_error(data):
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    header = bytearray(encode(data.draw(values(KINDS[kind]))))
    place = data.draw(st.integers(0, len(header) - 1))
    header[place] = data.draw(st.integers(0, 255))
    for damaged in (bytes(header), bytes(header[:place])):
        try:
            decode(damaged, 0)
        except WireError:
            continue


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([PROTOCOL_VERSION + 1, "Bye"], "install the same counterpoise on both"),
        ([None, "Bye"], "speaks protocol version None"),
        ([PROTOCOL_VERSION, "Hello"], "no such kind of message: 'Hello'"),
        ([PROTOCOL_VERSION, ["Bye"]], "no such kind of message"),
        ([PROTOCOL_VERSION, "Bye", 1], "Bye has 0 fields"),
        ([PROTOCOL_VERSION, "Revoke", "1"], "Revoke: int expected, got str"),
        ([PROTOCOL_VERSION, "Revoke", True], "Revoke: int expected, got bool"),
        ([PROTOCOL_VERSION, "Revoke", 1 << 63], "does not fit into 64 bits"),
        ([PROTOCOL_VERSION, "RankHello", 3, "{}"], "RankHello: array expected, got int"),
        ([PROTOCOL_VERSION, "ProbeDone", 3, [[1]]], "ProbeDone: Probed has 4 fields"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(parts, reason):
    with pytest.raises(WireError, match=reason):
        decode(msgpack.packb(parts), 0)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xdd" + (MAX_CONTAINER + 1).to_bytes(4, "big"),
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x00",
        b"\x91" * 100_000,
        encode(Bye()) + b"\x00",
    ],
    ids=["empty", "long", "longer", "text", "bytes", "map", "extension", "deep", "rest"],
)
def test_what_announces_too_much_is_refused_before_it_is_allocated(header):
    with pytest.raises(WireError):
        decode(header, 0)


def test_a_header_may_be_any_buffer():
    message = DecodeDone(1, 2, "k", (3,), b"")
    assert decode(memoryview(encode(message)), 1) == message
