"""Pieces are pulled from their workers, and come through the balancer where that cannot be."""

from typing import Any

import pytest

from counterpoise.balancer.parties.messages import LostPieces
from counterpoise.loader import LoaderError
from counterpoise.loader.remote import connection, puller
from tests.loader import balanced_data as made
from tests.loader.remote.balancer_here import BalancerHere
from tests.loader.remote.served import COUNT, Served, make_loader, taken

PACKED: dict[str, Any] = {"balance": {"layout": "packed"}}
LISTED: dict[str, Any] = {"collate_fn": made.as_list}
THROUGH = "gets samples of the worker at"


def deliver(balancer: BalancerHere, **given: Any) -> list[tuple[str, str]]:
    with balancer:
        remote = make_loader(balancer.data, balancer.address, **given)
        try:
            return taken(remote)
        finally:
            remote.close()


def test_only_the_frames_of_wanted_fields_are_pulled() -> None:
    balancer = BalancerHere(Served(COUNT), workers=1)
    deliver(balancer, **PACKED, fields={"map"})
    (worker,) = balancer.workers.values()
    serials = {serial for serial, _ in worker.pulls}
    assert {frames for _, frames in worker.pulls} <= {(0,), (1,)}
    assert len(worker.pulls) <= 2 * len(serials)


@pytest.mark.parametrize("given", [PACKED, LISTED, PACKED | {"fields": {"map"}}])
def test_a_worker_that_serves_nowhere_sends_through_the_balancer(
    given: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    balancer = BalancerHere(Served(COUNT), serves=(True, False))
    assert deliver(balancer, **given) == taken(make_loader(balancer.data, **given))
    assert balancer.relayed
    assert [THROUGH in each for each in caplog.messages].count(True) == 1


def test_a_worker_at_an_address_where_nobody_listens_is_out_of_reach(
    caplog: pytest.LogCaptureFixture,
) -> None:
    balancer = BalancerHere(Served(COUNT), addresses=(None, "tcp://127.0.0.1:9"))
    assert deliver(balancer, **LISTED) == taken(make_loader(balancer.data, **LISTED))
    (line,) = [each for each in caplog.messages if THROUGH in each]
    assert "tcp://127.0.0.1:9: no process listens there" in line


def test_a_worker_that_answers_nothing_is_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(puller, "ANSWER_S", 0.02)
    monkeypatch.setattr(connection, "BEAT_S", 0.05)
    balancer = BalancerHere(Served(COUNT), workers=1, is_silent=True)
    assert deliver(balancer, **LISTED) == taken(make_loader(balancer.data, **LISTED))
    (line,) = [each for each in caplog.messages if THROUGH in each]
    assert "connected, and no answer 3 times in a row" in line


def _cut(frames: list[Any]) -> list[Any]:
    return [frames[0][:-8], *frames[1:]]


def _scramble(frames: list[Any]) -> list[Any]:
    return [frames[0][:8] + b"\xc1" * (len(frames[0]) - 8), *frames[1:]]


def _swap(frames: list[Any]) -> list[Any]:
    return frames[1:]


@pytest.mark.parametrize("given", [PACKED, LISTED, PACKED | {"fields": {"map"}}])
def test_what_a_worker_has_no_more_is_made_again(given: dict[str, Any]) -> None:
    def tell(serial: int, frames: list[Any]) -> list[Any]:
        return [] if serial in (1, 4) else frames

    balancer = BalancerHere(Served(COUNT), lies=(tell, tell))
    assert deliver(balancer, **given) == taken(make_loader(balancer.data, **given))
    assert any(isinstance(each, LostPieces) for each in balancer.received)


@pytest.mark.parametrize("lie", [_cut, _scramble, _swap])
@pytest.mark.parametrize("serves", [True, False])
def test_what_a_worker_has_not_announced_ends_the_run(lie: Any, serves: bool) -> None:
    def tell(_: int, frames: list[Any]) -> list[Any]:
        return lie(frames)

    balancer = BalancerHere(Served(COUNT), serves=(serves, serves), lies=(tell, tell))
    with pytest.raises(LoaderError, match="the worker at" if serves else "the balancer has sent"):
        deliver(balancer, **LISTED)


def test_connections_that_are_not_used_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puller, "UNUSED_S", -1.0)
    closed = []
    close = puller.PiecePuller._close
    monkeypatch.setattr(
        puller.PiecePuller, "_close", lambda self, worker: closed.append(close(self, worker))
    )
    balancer = BalancerHere(Served(COUNT))
    assert deliver(balancer, **LISTED) == taken(make_loader(balancer.data, **LISTED))
    assert len(closed) > 1
