"""What a worker keeps for ranks to pull: bounded, under its token, until it is freed."""

import pytest

from counterpoise.balancer.protocol.messages import PullPayloads
from counterpoise.workers.serving.store import PayloadStore


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
    first, second = store.put(b"cat"), store.put(b"parrot")
    assert first is not None
    assert second is not None
    assert (second.token, second.serial, second.nbytes) == (7, first.serial + 1, 6)
    assert pull(store, 1, 2) == pull(store, 1, 2, 2, 1) == {1: b"cat", 2: b"parrot"}
    store.free([1, 1, 99])
    assert pull(store, 1, 2) == {2: b"parrot"}
    assert (len(store), store.nbytes) == (1, 6)


def test_another_token_s_payloads_are_gone(store: PayloadStore) -> None:
    store.put(b"cat")
    assert pull(store, 1, token=8) == {}
    store.begin(8, 100)
    assert pull(store, 1, token=8) == pull(store, 1, token=7) == {}
    handle = store.put(b"dog")
    assert handle is not None
    assert handle.serial == 2  # never the same again
    assert (len(store), store.nbytes) == (1, 3)


@pytest.mark.parametrize(("allowed", "limit"), [(10, 1000), (1000, 10)])
def test_no_more_is_kept_than_the_balancer_and_the_host_allow(allowed: int, limit: int) -> None:
    store = PayloadStore(limit)
    assert store.put(b"") is None
    assert store.put(b"early") is None  # nobody has said that it may
    store.begin(1, allowed)
    assert store.put(bytes(6)) is not None
    assert store.put(bytes(5)) is None
    assert store.put(bytes(4)) is not None
    store.free([1])
    assert store.put(bytes(6)) is not None


def test_what_was_announced_can_be_pulled_after_the_end(store: PayloadStore) -> None:
    store.put(b"cat")
    store.end()
    assert store.put(b"dog") is None
    assert pull(store, 1) == {1: b"cat"}
    store.free_all()
    assert (len(store), store.nbytes) == (0, 0)
