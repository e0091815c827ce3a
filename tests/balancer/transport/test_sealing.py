"""Sealed messages: what one side closes only the other opens, once, and only as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.balancer.protocol.messages import (
    NO_HANDLES,
    Batch,
    BatchItem,
    Bye,
    DecodedItem,
    DecodeDone,
    EpochPosition,
    SampleFailed,
    Weights,
)
from counterpoise.balancer.protocol.wire import WireError
from counterpoise.balancer.transport.sealing import (
    FROM_BALANCER,
    FROM_PEER,
    KEY_BYTES,
    AeadSeal,
    new_offer,
)

KEY = bytes(range(KEY_BYTES))
DONE = DecodeDone(7, (DecodedItem(3, "a telling name", (5, 6), b"layout"),))
PAYLOAD = bytes(range(256)) * 4


def ends(key=KEY, other=KEY):
    return AeadSeal(key, FROM_PEER), AeadSeal(other, FROM_BALANCER)


def batch(payloads):
    items = tuple(BatchItem(n, f"k{n}", b"") for n in range(len(payloads)))
    weights, after = Weights(1, 1, 1, 1, 1, 1), EpochPosition(0, 0, 0, 0)
    return Batch(0, 1, 2, 3, 4, weights, (), after, items, (), (), NO_HANDLES, ())


@given(st.lists(st.binary(max_size=200), max_size=5), st.text(max_size=30))
def test_what_one_side_closes_the_other_opens(payloads, reason):
    peer, balancer = ends()
    for message, frames in ((SampleFailed(1, 2, "k", reason, False), ()), (DONE, (PAYLOAD,))):
        assert balancer.open(peer.close(message, frames), frames) == message
    said = batch(payloads)
    assert peer.open(balancer.close(said, payloads), payloads) == said


def test_the_header_cannot_be_read():
    peer, _ = ends()
    front = peer.close(DONE, (PAYLOAD,))
    assert b"telling" not in front
    assert b"DecodeDone" not in front


@given(st.data())
def test_nothing_can_be_changed(data):
    peer, balancer = ends()
    front, payload = bytearray(peer.close(DONE, (PAYLOAD,))), bytearray(PAYLOAD)
    where = data.draw(st.sampled_from([front, payload]))
    where[data.draw(st.integers(0, len(where) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(WireError, match="changed"):
        balancer.open(front, (payload,))


@pytest.mark.parametrize("cut", [(b"abcd",), (b"a", b"bcd"), (b"ab", b"cd", b""), ()])
def test_payloads_cannot_be_cut_otherwise(cut):
    peer, balancer = ends()
    front = balancer.close(batch((b"ab", b"cd")), (b"ab", b"cd"))
    with pytest.raises(WireError):
        peer.open(front, cut)


def test_a_message_is_taken_once_and_in_order():
    peer, balancer = ends()
    first, second, third = (peer.close(Bye()) for _ in range(3))
    balancer.open(second)
    for late in (first, second):
        with pytest.raises(WireError, match="arrived after message 2"):
            balancer.open(late)
    assert balancer.open(third) == Bye()


def test_a_message_that_comes_back_is_not_taken():
    peer, _ = ends()
    with pytest.raises(WireError, match="not from the peer"):
        peer.open(peer.close(Bye()))


def test_another_key_opens_nothing():
    peer, balancer = ends(other=bytes(KEY_BYTES))
    with pytest.raises(WireError, match="not from the peer"):
        balancer.open(peer.close(Bye()))


@pytest.mark.parametrize("front", [b"", b"short", bytes(23), bytes(24), bytes(100)])
def test_what_is_not_sealed_is_refused(front):
    _, balancer = ends()
    with pytest.raises(WireError):
        balancer.open(front)


def test_a_key_of_another_length_is_refused():
    with pytest.raises(WireError, match="has 32 bytes, got 31"):
        AeadSeal(bytes(31), FROM_PEER)


def test_secrets_are_new_for_each_connection():
    one, other = new_offer(5), new_offer(5)
    assert one.port == other.port == 5
    assert not {one.name, one.password, one.key} & {other.name, other.password, other.key}
