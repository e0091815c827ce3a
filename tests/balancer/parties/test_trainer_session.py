"""What a trainer's session asks for, tells again, and hands out."""

import sys
from itertools import count
from types import FrameType
from typing import Any

import pytest

from counterpoise.balancer.parties.messages import (
    GENERATION,
    BeatBack,
    BeginRun,
    CountLabels,
    EndRun,
    GiveBatch,
    GivenPiece,
    JoinJob,
    LabelSum,
    LeaveJob,
    LostPieces,
    RunBegun,
    RunStops,
    TrainerBeat,
    WantBatches,
)  # fmt: skip
from counterpoise.balancer.parties.trainer_session import SMALL_BYTES, TrainerSession
from counterpoise.balancer.protocol.messages import Bye, UnknownPeer
from counterpoise.balancer.protocol.parts import EpochPosition, Ready, Weights
from counterpoise.balancer.run.tasks import MicrobatchFacts, RunStart

AT = EpochPosition(0, 0, 0, 0, "")
NEXT = EpochPosition(8, 1, 1, 0, "costs")


def begun(ranks: tuple[int, ...] = (0,), credit: int = 2, **start: Any) -> Any:
    session = TrainerSession(ranks, "{}", "{}", credit)
    session.receive(Ready(64, "print"))
    session.begin(RunStart(0, start.pop("at", AT), **start))
    session.receive(RunBegun(0))
    session.take_messages()
    return session


def give(
    index: int = 0,
    rank: int = 0,
    version: int = 0,
    pieces: int = 0,
    nbytes: int = SMALL_BYTES,
    **more: Any,
) -> GiveBatch:
    weights, holes = Weights(1, 1, 1, 1, 1, 1), more.pop("step_holes", ())
    facts = MicrobatchFacts(rank, index, 0, 1, weights, (), (), NEXT, (), (), holes)
    kept = tuple(GivenPiece(1, 10 * version + n, (nbytes,), (n,)) for n in range(pieces))
    return GiveBatch(0, index, version, False, kept, -1, facts, (), -1)


def kinds(messages: list[Any]) -> list[type]:
    return [type(message) for message in messages]


def test_it_joins_until_the_job_is_ready() -> None:
    session = TrainerSession((0,), "{}", "{}", 2)
    assert kinds(session.take_messages()) == [JoinJob]
    assert kinds(session.beat()) == [TrainerBeat, JoinJob]
    session.receive(Ready(64, "print"))
    assert kinds(session.beat()) == [TrainerBeat]


def test_it_begins_until_that_is_answered_and_wants_from_then_on() -> None:
    session = TrainerSession((0,), "{}", "{}", 2)
    session.receive(Ready(64, "print"))
    session.begin(RunStart(0, AT))
    assert kinds(session.beat())[-1] == BeginRun
    session.receive(RunBegun(0))
    assert session.take_messages() == [WantBatches(0, ((0, 2, 0),), 0)]
    assert kinds(session.beat()) == [TrainerBeat, WantBatches]


def test_microbatches_come_in_order_whatever_comes_first() -> None:
    session = begun()
    session.receive(give(1))
    assert session.peek() is None
    session.receive(give(0))
    first = session.peek()
    assert first.give.index == 0
    session.release(first)
    session.release(first)
    assert session.peek().give.index == 1


def test_ranks_of_one_process_take_turns() -> None:
    session = begun((0, 1))
    for index in range(2):
        for rank in (1, 0):
            session.receive(give(index, rank))
    order = []
    while (batch := session.peek()) is not None:
        order.append((batch.give.index, batch.give.facts.rank))
        session.release(batch)
    assert order == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_credit_is_told_by_halves_and_all_of_it_by_one_that_waits() -> None:
    session = begun(credit=4)
    session.take_messages()
    session.receive(give(0))
    session.release(session.peek())
    assert not session.take_messages()
    assert session.take_messages(waits=True) == [WantBatches(0, ((0, 5, 1),), 0)]
    for index in (1, 2):
        session.receive(give(index))
        session.release(session.peek())
    assert session.take_messages() == [WantBatches(0, ((0, 7, 3),), 0)]


@pytest.mark.parametrize(("nbytes", "credit"), [(1 << 10, 16), (1 << 21, 4), (1 << 30, 2)])
def test_more_small_microbatches_are_under_way(nbytes: int, credit: int) -> None:
    session = begun(credit=2)
    for index in range(8):
        session.receive(give(index, pieces=1, nbytes=nbytes))
        session.take_pulls()
        session.note_pulled(0, index, 0, 0, b"")
    (wants,) = session.take_messages(waits=True)
    assert wants.wants == ((0, credit, 8),)


def test_a_microbatch_is_here_with_all_its_pieces() -> None:
    session = begun()
    session.receive(give(0, pieces=2))
    pulls = session.take_pulls()
    assert [pull.number for pull in pulls] == [0, 1]
    session.note_pulled(0, 0, 0, 1, b"second")
    assert session.peek() is None
    session.note_pulled(0, 0, 0, 0, b"first")
    assert session.peek().frames == {0: b"first", 1: b"second"}


@pytest.mark.parametrize("pieces", [0, 1])
def test_one_whose_last_call_a_signal_has_ended_at_any_line_is_handed_out(pieces: int) -> None:
    for last in count():
        session, lines, is_through = begun(), iter(range(last)), True

        def raise_at_a_line(frame: FrameType, event: str, _: Any, lines: Any = lines) -> Any:
            if event == "line" and next(lines, None) is None:
                raise KeyboardInterrupt
            return raise_at_a_line if "trainer_session" in frame.f_code.co_filename else None

        sys.settrace(raise_at_a_line)
        try:
            take_all(session, pieces)
        except KeyboardInterrupt:
            is_through = False
        finally:
            sys.settrace(None)
        session.pull_again()  # over another connection; the balancer sends again what is not here
        take_all(session, pieces)
        assert session.peek() is not None, f"line {last}"
        if is_through:
            return


def take_all(session: Any, pieces: int) -> None:
    session.receive(give(0, pieces=pieces))
    for pull in session.take_pulls():
        session.note_pulled(0, 0, 0, pull.number, [b""])


def test_a_newer_version_is_pulled_where_its_pieces_are_others() -> None:
    session = begun()
    session.receive(give(0, pieces=2))
    session.take_pulls()
    session.note_pulled(0, 0, 0, 1, b"second")
    session.receive(give(0, version=1, pieces=2))
    assert [(pull.number, pull.piece.serial) for pull in session.take_pulls()] == [(0, 10)]
    session.receive(give(0, version=0, pieces=2))
    assert not session.take_pulls()


def test_of_a_former_attempt_no_piece_is_of_use() -> None:
    session = begun()
    session.receive(give(0, pieces=2))
    session.note_pulled(0, 0, 0, 1, b"second")
    session.receive(give(0, version=1 << GENERATION, pieces=1))
    session.note_pulled(0, 0, 0, 0, b"of the former")
    assert session.peek() is None
    session.note_pulled(0, 0, 1 << GENERATION, 0, b"whole")
    assert session.peek().frames == {0: b"whole"}


def test_a_piece_that_cannot_be_pulled_is_told_until_it_is_here() -> None:
    session = begun()
    session.take_messages()
    session.receive(give(0, pieces=1))
    session.note_lost(session.take_pulls()[0], "no route")
    lost = LostPieces(0, 0, 0, 0, (0,), "no route")
    assert session.take_messages() == [lost]
    assert session.beat()[-1] == lost
    session.note_pulled(0, 0, 0, 0, b"through the balancer")
    assert lost not in session.beat()


def test_a_balancer_that_knows_it_not_is_told_where_it_stands() -> None:
    session = begun((0, 1), holes=(3,), at=AT)
    for rank in (0, 1):
        session.receive(give(0, rank, step_holes=(5,)))
        session.release(session.peek())
    session.receive(give(1, 0, step_holes=(9,)))
    session.release(session.peek())
    session.take_messages()
    session.receive(UnknownPeer())
    session.receive(UnknownPeer())
    join, begin = session.take_messages()
    assert isinstance(join, JoinJob)
    assert (begin.at, begin.had, begin.served) == (AT, 1, 1)
    assert (begin.here.step, begin.here.start) == (1, 8)
    assert (begin.known, begin.holes, begin.samples) == ((0, 1), (5, 9), 64)


def test_counts_are_told_until_added_up_and_again_to_a_new_balancer() -> None:
    session = begun()
    count = CountLabels(0, 0, 4, 12)
    session.count_labels(4, {0: 12})
    assert count in session.take_messages()
    assert count in session.beat()
    session.receive(LabelSum(0, 4, 20))
    assert session.label_sum(4) == 20
    assert count not in session.beat()
    session.receive(UnknownPeer())
    assert count in session.beat()


def test_it_is_at_the_end_after_all() -> None:
    session = begun()
    session.receive(EndRun(0, 0, 1, 5))
    assert not session.is_at_end
    session.receive(give(0))
    session.release(session.peek())
    assert session.is_at_end
    assert session.left_out == 5


def test_why_a_run_stopped_is_forgotten_with_the_next() -> None:
    session = begun()
    session.receive(RunStops(1, "of another", False))
    assert not session.failure
    session.receive(RunStops(0, "no more", True))
    assert (session.failure, session.comes_again) == ("no more", True)
    session.begin(RunStart(0, AT))
    assert not session.failure
    assert session.take_messages()[-1].run == 1


def test_it_says_that_it_leaves_until_it_is_released() -> None:
    session = begun()
    session.leave()
    assert kinds(session.take_messages())[-1] == LeaveJob
    assert session.beat() == [LeaveJob()]
    session.receive(Bye())
    assert session.has_left


def test_the_answer_to_a_beat_says_what_is_waited_for() -> None:
    session = begun()
    (beat, *_) = (m for m in session.beat(asks=True) if isinstance(m, TrainerBeat))
    assert beat.asks
    session.receive(BeatBack(beat.number, "rank 1"))
    session.receive(BeatBack(0, ""))  # which finds out whether this process is here
    assert session.waiting == "rank 1"
