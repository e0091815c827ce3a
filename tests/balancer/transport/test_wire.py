"""The wire format: every message comes back as it was sent, anything else is a WireError."""

from typing import get_args, get_origin, get_type_hints

import msgpack
import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from msgspec import structs

from counterpoise.balancer.job.messages import PulledFrames
from counterpoise.balancer.parties.messages import GivenPiece
from counterpoise.balancer.planning.problem.costs import MAX_COST
from counterpoise.balancer.pool.messages import FailedPlace, FreeParts, PartBroken
from counterpoise.balancer.protocol.messages import PROTOCOL_VERSION, Bye
from counterpoise.balancer.protocol.parts import (
    Cost,
    Count,
    EpochPosition,
    Hole,
    PayloadServer,
    Weights,
)
from counterpoise.balancer.protocol.records import ArrayRecord, Integer
from counterpoise.balancer.protocol.status_messages import TrainerStatus, WorkerStatus
from counterpoise.balancer.protocol.trace_messages import PartySpans, Span
from counterpoise.balancer.run.tasks import MicrobatchFacts
from counterpoise.balancer.transport.wire import (
    KINDS,
    MAX_JOINED,
    MAX_JOINED_BYTES,
    SMALL_KINDS,
    Several,
    WireError,
    count_payload_frames,
    decode,
    decode_all,
    encode,
    encode_all,
)

VALUES = {
    int: st.integers(-(1 << 63) + 1, (1 << 63) - 1), str: st.text(max_size=20),
    bytes: st.binary(max_size=20), bool: st.booleans(), Cost: st.integers(0, MAX_COST),
    Count: st.integers(0, (1 << 63) - 1),
}  # fmt: skip
VALUES[Integer] = VALUES[int]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
    | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)  # fmt: skip


def values(hint):
    """Return a strategy for an annotation."""
    if isinstance(hint, type) and issubclass(hint, ArrayRecord):
        hints = get_type_hints(hint, include_extras=True)
        fields = {name: values(hints[name]) for name in hint.__struct_fields__}
        return st.builds(hint, **fields)
    if hint in VALUES:
        return VALUES[hint]
    assert get_origin(hint) is tuple
    parts = get_args(hint)
    if parts[-1] is not ...:
        return st.tuples(*map(values, parts))
    return st.lists(values(parts[0]), max_size=3).map(tuple)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_comes_back_as_it_was_sent(name):
    @settings(max_examples=15)
    @given(values(KINDS[name]))
    def check(message):
        assert decode(encode(message), count_payload_frames(message)) == message

    check()


@pytest.mark.parametrize("name", KINDS)
def test_a_header_is_the_array_of_version_kind_and_fields(name):
    @settings(max_examples=15)
    @given(values(KINDS[name]))
    def check(message):
        fields = structs.astuple(message)
        plain = msgspec.to_builtins(fields, builtin_types=(bytes,))
        packed = msgpack.packb([PROTOCOL_VERSION, name, *plain], unicode_errors="backslashreplace")
        assert encode(message) == packed

    check()


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_takes_only_the_payload_frames_that_it_says(name):
    @settings(max_examples=5)
    @given(values(KINDS[name]), st.integers(0, 70_000))
    def check(message, frames):
        if frames != count_payload_frames(message):
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
        ([PROTOCOL_VERSION - 1, "Overview"], "install the same counterpoise on both"),
        ([None, "Bye"], "speaks protocol version 192"),
        ([PROTOCOL_VERSION, "Hello"], "no such kind of message: 'Hello'"),
        ([PROTOCOL_VERSION, ["Bye"]], "no such kind of message"),
        ([PROTOCOL_VERSION, "Bye", 1], "Bye has 0 fields"),
        ([PROTOCOL_VERSION, "RunBegun", "1"], "RunBegun.run: expected int, got str"),
        ([PROTOCOL_VERSION, "RunBegun", True], "RunBegun.run: expected int, got bool"),
        ([PROTOCOL_VERSION, "RunBegun", 1.0], "RunBegun.run: expected int, got float"),
        ([PROTOCOL_VERSION, "RunBegun", -1], "RunBegun.run: expected int >= 0"),
        ([PROTOCOL_VERSION, "RunBegun", 1 << 63], r"RunBegun.run: expected int <= 9\d{18}$"),
        ([PROTOCOL_VERSION, "RunBegun"], "RunBegun has 1 fields, got 0"),
        ([PROTOCOL_VERSION, "PulledFrames", 1, 1], "with 0 payload frames, it has 1"),
        ([PROTOCOL_VERSION, "JoinJob", 3, 0, 1, "", "", 1, "", ""],
         "JoinJob.ranks: expected array, got int"),
        ([PROTOCOL_VERSION, "PartMeasured", 3, [], [[1]], 0, False, []],
         r"failed\[0\]: .* at least length 5, got 1"),
        ([PROTOCOL_VERSION, "PartMeasured", 3, [[True]], [], 0, False, []],
         r"PartMeasured.costs\[0\]\[0\]: expected int, got bool"),
        ([PROTOCOL_VERSION, "PartMeasured", 3, [[-1]], [], 0, False, []],
         r"costs\[0\]\[0\]: expected int >= 0"),
        ([PROTOCOL_VERSION, "PartMeasured", 3, [[2**40 + 1]], [], 0, False, []],
         r"costs\[0\]\[0\]: expected int <= 1099511627776"),
        ([PROTOCOL_VERSION, "PartMeasured", 3, [[float("nan")]], [], 0, False, []],
         r"costs\[0\]\[0\]: expected int, got float"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(parts, reason):
    with pytest.raises(WireError, match=reason):
        decode(msgpack.packb(parts), 0)


@pytest.mark.parametrize(
    "header",
    [
        b"", b"\xdd" + ((1 << 20) + 1).to_bytes(4, "big"), b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x00", b"\x91" * 100_000, encode(Bye()) + b"\x00",
        encode(FreeParts(()))[:-1] + b"\xdd\xff\xff\xff\xff",
        encode(FreeParts(()))[:-1] + b"\xdc\xff\xff",
    ],
    ids=[
        *("empty", "long", "longer", "text", "bytes", "map", "extension", "deep", "rest"),
        *("inside", "short inside"),
    ],
)  # fmt: skip
def test_what_announces_too_much_is_refused_before_it_is_allocated(header):
    with pytest.raises(WireError):
        decode(header, 0)


@given(st.lists(st.one_of(*(values(kind) for kind in (*SMALL_KINDS, Bye))), max_size=200))
def test_messages_that_travel_together_come_in_their_order(messages):
    frames = encode_all(messages)
    assert [each for frame in frames for each in decode_all(frame, 0)] == messages
    assert len(frames) <= 1 + len(messages) // MAX_JOINED + 2 * messages.count(Bye())


def test_what_is_large_travels_alone():
    large = PartBroken(1, "x" * MAX_JOINED_BYTES, 0)
    small = FreeParts((1,))
    told = [len(decode_all(frame, 0)) for frame in encode_all([small, small, large, small, small])]
    assert told == [2, 1, 2]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ((), "0 messages in one"),
        ((encode(FreeParts(())),), "1 messages in one"),
        ((encode(FreeParts(())),) * (MAX_JOINED + 1), f"{MAX_JOINED + 1} messages in one"),
        ((encode(FreeParts(())), encode(Bye())), "Bye does not travel with others"),
        ((encode(FreeParts(())), encode(Several(()))), "Several does not travel with others"),
        ((encode(FreeParts(())), b""), "not a msgpack header"),
        ((encode(FreeParts(())), encode(FreeParts(())) + b"\0"), "not a msgpack header"),
    ],
)
def test_several_that_may_not_be_one_are_refused(headers, reason):
    with pytest.raises(WireError, match=reason):
        decode_all(encode(Several(headers)), 0)


def test_a_header_may_be_any_buffer():
    message = PulledFrames(1, 2)
    assert decode(memoryview(encode(message)), 2) == message


def test_records_inside_messages_have_no_defaults_that_a_peer_could_leave_out():
    parts = (
        EpochPosition, FailedPlace, GivenPiece, Hole, MicrobatchFacts, PartySpans, PayloadServer,
        Span, TrainerStatus, WorkerStatus, Weights,
    )  # fmt: skip
    for part in parts:
        assert not part.__struct_defaults__, part
    kinds = (*KINDS.values(), MicrobatchFacts)
    hints = [hint for kind in kinds for hint in get_type_hints(kind).values()]
    inner = {each for hint in hints for each in (hint, *get_args(hint))}
    inner |= {each for hint in inner for each in get_args(hint)}
    assert {each for each in inner if hasattr(each, "__struct_fields__")} == set(parts)
