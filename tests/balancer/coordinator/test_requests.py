import math
import random

import pytest

from counterpoise.balancer.coordinator.peers import requests
from counterpoise.balancer.coordinator.peers.requests import PendingRequests
from counterpoise.balancer.protocol.payload_messages import RequestBatch

A, B = b"a", b"b"


def asked(*places, run=0, rank=0, peer=A):
    pending = PendingRequests()
    for step, microbatch in places:
        pending.add(peer, RequestBatch(run, rank, step, microbatch), 0.0)
    return pending


def test_a_request_is_looked_at_when_it_comes_and_when_something_has_changed():
    pending = asked((1, 0), (0, 1))
    first, second = RequestBatch(0, 0, 0, 1), RequestBatch(0, 0, 1, 0)
    assert pending.take(0) == [(first, A), (second, A)]
    assert pending.take(0) == []
    pending.look_at(0, 1, 0)
    assert pending.take(0) == [(first, A)]
    pending.look_at_peers([A, B])
    assert pending.take(0) == [(first, A), (second, A)]
    pending.look_at_all()
    assert len(pending.take(0)) == 2


def test_what_is_for_somebody_else_is_not_looked_at():
    pending = asked((0, 0))
    pending.take(0)
    pending.look_at(0, 0, rank=1)
    pending.look_at(0, 1, rank=0)
    pending.look_at_peers([B])
    assert pending.take(0) == []


def test_a_request_that_comes_again_is_looked_at_again_and_keeps_its_time():
    pending = asked((0, 0))
    pending.take(0)
    pending.add(A, RequestBatch(0, 0, 0, 0), 5.0)
    assert pending.take(0) == [(RequestBatch(0, 0, 0, 0), A)]
    assert pending.nearest_of_peers(0) == {A: (RequestBatch(0, 0, 0, 0), 0.0)}


def test_a_new_run_forgets_the_requests_of_those_before_and_looks_at_all():
    pending = asked((0, 0))
    pending.add(A, RequestBatch(1, 0, 3, 0), 0.0)
    assert pending.take(0) == [(RequestBatch(0, 0, 0, 0), A)]
    assert pending.take(1) == [(RequestBatch(1, 0, 3, 0), A)]
    assert len(pending._since) == 1


def test_what_a_peer_has_asked_for_of_runs_that_it_has_left_is_forgotten():
    pending = asked((0, 0))
    pending.add(A, RequestBatch(1, 0, 3, 0), 0.0)
    pending.add(B, RequestBatch(0, 0, 0, 0), 0.0)
    pending.remove_before(A, 1)
    assert pending.take(0) == [(RequestBatch(0, 0, 0, 0), B)]
    assert pending.take(1) == [(RequestBatch(1, 0, 3, 0), A)]


def test_a_peer_cannot_ask_for_any_number(monkeypatch):
    monkeypatch.setattr(requests, "MAX_REQUESTS", 3)
    pending = asked(*((step, 0) for step in range(9)))
    assert len(pending._since) == 3
    pending.add(A, RequestBatch(0, 0, 99, 0), 0.0)
    assert len(pending._since) == 3
    pending.add(B, RequestBatch(0, 1, 0, 0), 0.0)
    assert len(pending._since) == 4


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_left_of_requests_that_are_answered_or_whose_peers_have_gone(seed):
    draw = random.Random(seed)
    pending, known = PendingRequests(), {}
    for _ in range(200):
        request = RequestBatch(0, draw.randrange(2), draw.randrange(4), draw.randrange(3))
        peer = draw.choice((A, B))
        if draw.random() < 0.6:
            pending.add(peer, request, 0.0)
            known[request, peer] = None
        elif (request, peer) in known:
            pending.remove(request, peer)
            del known[request, peer]
        if draw.random() < 0.05:
            pending.remove_before(A, math.inf)
            known = {key: None for key in known if key[1] != A}
        pending.look_at_all()
        assert set(pending.take(0)) == set(known)
        for each in (A, B):
            own = [r for r, p in known if p == each]
            nearest = min(own, key=lambda r: (r.step, r.microbatch, r.rank), default=None)
            assert pending.nearest_of(each, 0) == nearest
    for request, peer in list(known):
        pending.remove(request, peer)
    assert not any(vars(pending)[name] for name in ("_since", "_of_peer", "_of_place"))
