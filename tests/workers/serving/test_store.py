"""What a worker keeps for ranks to pull: bounded, under its token, until it is freed."""

import pytest

from counterpoise.balancer.protocol.payload_messages import PullPayloads
from counterpoise.workers.serving.server import PayloadStore


@pytest.fixture
def store() -> PayloadStore:
    made = PayloadStore(limit_bytes=1000)
    made.begin(7, 100)
    return made


def pull(store: PayloadStore, *serials: int, token: int = 7) -> dict[int, bytes]:
    answer, payloads = store.answer(PullPayloads(3, token, serials))
    assert answer.number == 3
    return dict(zip(answer.serials, map(bytes, payloads), strict=True))


def test_a_payload_is_there_until_it_is_freed(store: PayloadStore) -> None:
    assert (store.keep(b"cat"), store.keep(b"parrot")) == (1, 2)
    assert pull(store, 1, 2) == pull(store, 1, 2, 2, 1) == {1: b"cat", 2: b"parrot"}
    store.free([1, 1, 99])
    assert pull(store, 1, 2) == {2: b"parrot"}
    assert (len(store), store.nbytes) == (1, 6)


def test_another_token_s_payloads_are_gone(store: PayloadStore) -> None:
    store.keep(b"cat")
    assert pull(store, 1, token=8) == {}
    store.begin(8, 100)
    assert pull(store, 1, token=8) == pull(store, 1, token=7) == {}
    assert store.keep(b"dog") == 2  # never the same again
    assert (len(store), store.nbytes) == (1, 3)


@pytest.mark.parametrize(("allowed", "limit"), [(10, 1000), (1000, 10)])
def test_no_more_is_kept_than_the_balancer_and_the_host_allow(allowed: int, limit: int) -> None:
    store = PayloadStore(limit)
    assert not store.keep(b"")
    assert not store.keep(b"early")  # nobody has said that it may
    store.begin(1, allowed)
    assert store.keep(bytes(6))
    assert not store.keep(bytes(5))
    assert store.keep(bytes(4))
    store.free([1])
    assert store.keep(bytes(6))


def test_what_was_announced_can_be_pulled_after_the_end(store: PayloadStore) -> None:
    store.keep(b"cat")
    store.end()
    assert not store.keep(b"dog")
    assert pull(store, 1) == {1: b"cat"}
    store.free_all()
    assert (len(store), store.nbytes) == (0, 0)
