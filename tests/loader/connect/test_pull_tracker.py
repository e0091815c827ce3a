"""What a rank pulls: asked for once, kept until it is used, and every wait has an end."""

from collections.abc import Sequence

import pytest

from counterpoise.balancer.protocol.parts import BatchItem, EpochPosition, PayloadServer, Weights
from counterpoise.balancer.protocol.payload_messages import (
    Batch,
    PulledPayloads,
    PullFailed,
    PullPayloads,
)
from counterpoise.loader.connect.pull_tracker import (
    ANSWER_S,
    CONNECT_S,
    MOST_SILENCES,
    UNUSED_S,
    PullTracker,
)

WEIGHTS = Weights(0, 0, 0, 0, 0, 0)


def server(token: int) -> PayloadServer:
    return PayloadServer(token, f"tcp://worker-{token}:1", b"", b"", b"password")


def batch(*handles: tuple[int, int] | None, servers: Sequence[int] = (7, 8)) -> Batch:
    """Return a microbatch of payloads of 3 bytes, by token and serial, None for a frame."""
    made = tuple((*place, 3) if place else (0, 0, 0) for place in handles)
    used = {token for token, *_ in made}
    return Batch(
        run=0, rank=0, step=0, microbatch=0, microbatches=1, weights=WEIGHTS, costs=(), padding=(),
        after=EpochPosition(0, 0, 1, 0, ""), holes=(), step_holes=(),
        items=tuple(BatchItem(n, f"k{n}", b"h", *place) for n, place in enumerate(made)),
        servers=tuple(server(token) for token in servers if token in used),
    )  # fmt: skip


class Rank:
    """A tracker on a clock of its own, and what it has asked for."""

    def __init__(self) -> None:
        self.tracker = PullTracker(lambda _, payload: "" if payload != b"bad" else "no such field")
        self.now = 100.0
        self.asked: list[tuple[int, PullPayloads]] = []

    def want(self, *arrived: Batch) -> list[PullPayloads]:
        new = self.tracker.want(arrived, self.now)
        self.asked += [(each.token, message) for each, message in new]
        return [message for _, message in new]

    def answer(self, message: PullPayloads, *payloads: bytes, serials: Sequence[int] = ()) -> None:
        given = tuple(serials or message.serials)
        answer = PulledPayloads(message.number, given)
        self.tracker.received(message.token, answer, payloads, self.now)

    def reports(self) -> list[PullFailed]:
        found, self.tracker.reports = self.tracker.reports, []
        return found

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.tracker.expire(self.now)


@pytest.fixture
def rank() -> Rank:
    return Rank()


def here(rank: Rank, token: int, serial: int) -> object | None:
    """Return a payload that is here, None if it is not."""
    found = rank.tracker.payloads(batch((token, serial)), ())
    return None if found is None else found[0]


def test_each_worker_is_asked_once_for_all_that_it_has(rank: Rank) -> None:
    wanted = batch((7, 1), None, (8, 5), (7, 2))
    first, second = rank.want(wanted)
    assert (first.token, first.serials) == (7, (1, 2))
    assert (second.token, second.serials) == (8, (5,))
    assert rank.want(wanted) == []
    assert not rank.tracker.is_settled(wanted)
    rank.answer(first, b"cat", b"dog")
    assert not rank.tracker.is_settled(wanted)
    rank.answer(second, b"cow")
    assert rank.tracker.is_settled(wanted)
    frame = b"a frame"
    assert rank.tracker.payloads(wanted, [frame]) == (b"cat", frame, b"cow", b"dog")
    assert rank.want(wanted) == []
    assert rank.tracker.waiting == 0


def test_what_is_used_is_forgotten(rank: Rank) -> None:
    (message,) = rank.want(batch((7, 1)))
    rank.answer(message, b"cat")
    rank.want()
    assert here(rank, 7, 1) is None


def test_a_book_is_empty_when_nothing_is_asked_for_kept_or_to_be_told(rank: Rank) -> None:
    assert rank.tracker.is_empty
    (message,) = rank.want(batch((7, 1)))
    assert not rank.tracker.is_empty
    rank.answer(message, b"bad")
    rank.want()
    assert not rank.tracker.is_empty  # there is a report, and a connection
    rank.reports()
    rank.pass_time(UNUSED_S + 1)
    assert not rank.tracker.is_empty  # a connection is to be closed
    rank.tracker.ended.clear()
    assert rank.tracker.is_empty


def test_a_microbatch_without_such_payloads_is_settled(rank: Rank) -> None:
    assert rank.tracker.is_settled(batch(None, None))
    assert rank.want(batch(None)) == []


def test_what_a_worker_has_not_any_more_is_gone(rank: Rank) -> None:
    wanted = batch((7, 1), (7, 2))
    (message,) = rank.want(wanted)
    rank.answer(message, b"dog", serials=(2,))
    assert rank.tracker.is_settled(wanted)
    assert here(rank, 7, 1) is None
    assert rank.want(wanted) == []  # the balancer is asked again, not the worker
    assert rank.reports() == []


@pytest.mark.parametrize(
    ("payload", "reason"), [(b"ca", "has 2 bytes, 3 were announced"), (b"bad", "no such field")]
)
def test_rubbish_is_never_used_and_its_worker_is_named(
    rank: Rank, payload: bytes, reason: str
) -> None:
    wanted = batch((7, 1))
    (message,) = rank.want(wanted)
    rank.answer(message, payload)
    assert rank.tracker.is_settled(wanted)
    assert here(rank, 7, 1) is None
    (report,) = rank.reports()
    assert (report.token, report.is_rubbish) == (7, True)
    assert reason in report.reason


def test_answers_to_nothing_are_ignored(rank: Rank) -> None:
    wanted = batch((7, 1))
    (message,) = rank.want(wanted)
    rank.answer(PullPayloads(99, 7, (1,)), b"cow")
    rank.answer(PullPayloads(message.number, 8, (1,)), b"cow")
    assert here(rank, 7, 1) is None
    rank.answer(message, b"cat", b"pig", serials=(1, 2))  # with one that nobody asked for
    rank.answer(message, b"dog")
    assert here(rank, 7, 1) == b"cat"
    assert here(rank, 7, 2) is None


def test_a_connection_that_ends_loses_what_was_asked_for_over_it(rank: Rank) -> None:
    wanted = batch((7, 1), (8, 1))
    message, other = rank.want(wanted)
    rank.tracker.connected(7)
    rank.tracker.disconnected(7, "the connection has ended")
    assert rank.tracker.is_settled(wanted)
    assert rank.tracker.ended == [7]
    assert rank.reports() == []
    rank.answer(message, b"cat")  # too late
    assert here(rank, 7, 1) is None
    rank.answer(other, b"cow")
    assert here(rank, 8, 1) == b"cow"
    assert [each.token for each in rank.want(batch((7, 3)))] == [7]  # over a new connection


def test_a_worker_that_cannot_be_connected_to_is_out_of_reach(rank: Rank) -> None:
    wanted = batch((7, 1))
    rank.want(wanted)
    rank.tracker.disconnected(7, "nobody listens there")
    assert rank.tracker.is_settled(wanted)
    expected = PullFailed(7, "tcp://worker-7:1: nobody listens there", False)
    assert rank.reports() == [expected]
    again = batch((7, 2))
    assert rank.want(again) == []
    assert rank.tracker.is_settled(again)
    assert rank.reports() == [expected]  # the first may have been lost


def test_a_connection_is_waited_for_a_bounded_time(rank: Rank) -> None:
    wanted = batch((7, 1))
    rank.want(wanted)
    rank.pass_time(CONNECT_S - 1)
    assert not rank.tracker.is_settled(wanted)
    rank.pass_time(2)
    assert rank.tracker.is_settled(wanted)
    assert [each.reason for each in rank.reports()] == [
        "tcp://worker-7:1: no connection within 5 s"
    ]


def test_a_connection_that_is_not_used_is_closed_and_made_again(rank: Rank) -> None:
    (first, second) = rank.want(batch((7, 1), (8, 1)))
    rank.answer(first, b"cat")
    rank.answer(second, b"dog")
    rank.pass_time(UNUSED_S - 1)
    assert rank.tracker.ended == []
    (again,) = rank.want(batch((7, 2)))
    rank.answer(again, b"cow")
    rank.pass_time(2)
    assert rank.tracker.ended == [8]
    (late,) = rank.want(batch((8, 2)))
    rank.answer(late, b"hen")
    assert here(rank, 8, 2) == b"hen"
    assert rank.reports() == []


def test_an_answer_is_waited_for_and_several_times_in_a_row_is_too_often(rank: Rank) -> None:
    for time in range(MOST_SILENCES):
        assert rank.reports() == []
        wanted = batch((7, 1 + time))
        assert rank.want(wanted)
        rank.tracker.connected(7)
        rank.pass_time(ANSWER_S - 1)
        assert not rank.tracker.is_settled(wanted)
        rank.pass_time(2)
        assert rank.tracker.is_settled(wanted)
        rank.want()
    (report,) = rank.reports()
    assert "no answer 3 times in a row" in report.reason
    assert rank.want(batch((7, 9))) == []


def test_an_answer_between_two_silences_counts(rank: Rank) -> None:
    for serial in range(2 * MOST_SILENCES):
        (message,) = rank.want(batch((7, serial)))
        rank.tracker.connected(7)
        if serial % 2:
            rank.answer(message, b"cat")
        else:
            rank.pass_time(ANSWER_S + 1)
        rank.want()
    assert rank.reports() == []


def test_a_pull_waits_while_those_before_it_are_answered(rank: Rank) -> None:
    first, second = batch((7, 1)), batch((7, 2))
    one, two = rank.want(first, second)
    rank.tracker.connected(7)
    rank.pass_time(ANSWER_S - 1)
    rank.answer(one, b"cat")
    rank.pass_time(ANSWER_S - 1)
    assert not rank.tracker.is_settled(second)
    rank.answer(two, b"dog")
    assert here(rank, 7, 2) == b"dog"


def test_all_is_asked_for_again_when_the_connections_were_closed(rank: Rank) -> None:
    wanted = batch((7, 1), (7, 2))
    (message,) = rank.want(wanted)
    rank.tracker.forget_connections()
    (again,) = rank.want(wanted)
    assert (again.serials, again.number != message.number) == (message.serials, True)
    rank.answer(again, b"cat", b"dog")
    rank.tracker.forget_connections()
    assert rank.want(wanted) == []
    assert here(rank, 7, 1) == b"cat"
