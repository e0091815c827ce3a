"""What a balancer answers trainers that join, begin, take and leave."""

import sys
from typing import Any

import msgspec
import pytest

from counterpoise.balancer.parties.messages import (
    BeatBack,
    BeginRun,
    CountLabels,
    EndRun,
    GiveBatch,
    JoinJob,
    LabelSum,
    LeaveJob,
    LostPieces,
    RunBegun,
    RunStops,
    ToTrainer,
    TrainerBeat,
    WantBatches,
)  # fmt: skip
from counterpoise.balancer.parties.parties import Parties
from counterpoise.balancer.pool.tickets import KeptPiece, Ticket
from counterpoise.balancer.protocol.messages import Bye, PeerRejected, UnknownPeer
from counterpoise.balancer.protocol.parts import EpochPosition, Ready, Weights
from counterpoise.balancer.run.tasks import LoadedBatch, MicrobatchFacts

AT = EpochPosition(0, 0, 0, 0, "")
LATER = EpochPosition(0, 0, 2, 0, "costs")


def facts(rank: int, step: int) -> MicrobatchFacts:
    return MicrobatchFacts(rank, step, 0, 1, Weights(1, 1, 1, 1, 1, 1), (), (), AT, (), (), ())


class World:
    """Parties at a time; messages of processes "a", "b", ... and what they are told."""

    def __init__(self, ranks: int = 2, **more: Any) -> None:
        self.parties: Any = Parties(ranks, 1, int, **more)
        self.parties.set_ready(64, "print")
        self.now = 0.0

    def say(self, peer: str, *messages: Any) -> None:
        for message in messages:
            self.parties.receive(peer.encode(), message, self.now)

    def join(self, peer: str, *ranks: int, **more: Any) -> None:
        fields: dict[str, Any] = {
            "sharer": 0, "sharers": 1, "job": "{}", "layout": "{}", "incarnation": 0,
        }  # fmt: skip
        self.say(peer, JoinJob(ranks, name=more.pop("name", peer), **(fields | more)))

    def begin(self, peer: str, run: int = 0, **more: Any) -> None:
        fields: dict[str, Any] = {
            "epoch": 0, "at": AT, "costs": "", "samples": -1, "here": AT, "had": 0, "served": 0,
            "holes": (), "known": (),
        }  # fmt: skip
        self.say(peer, BeginRun(run, **(fields | more)))

    def told(self) -> dict[str, list[ToTrainer]]:
        heard: dict[str, list[ToTrainer]] = {}
        for peer, message in self.parties.take_messages():
            heard.setdefault(peer.decode(), []).append(message)
        return heard

    def wait(self, seconds: float, *alive: str) -> None:
        """Let seconds pass, in which some are silent, and the others cannot be reached."""
        for _ in range(int(seconds)):
            self.now += 1
            self.parties.tick(self.now)
            for peer in {*self.parties.peers} - {name.encode() for name in alive}:
                self.parties.note_unreachable(peer, self.now)
            out = self.parties._out  # without what only shows who is there
            self.parties._out = [each for each in out if each[1] != BeatBack(0, "")]

    def give(self, rank: int, step: int, ticket: Ticket | None = None) -> None:
        self.parties.attempt.give(facts(rank, step), LoadedBatch(ticket))


def begun(**more: Any) -> World:
    """Return a world in which "a" plays rank 0 and "b" rank 1."""
    world = World(**more)
    for rank, peer in enumerate("ab"):
        world.join(peer, rank)
        world.begin(peer)
    world.told()
    return world


def sharing() -> World:
    """Return a world in which "a" and "b" share rank 0."""
    world = World(1)
    for sharer, peer in enumerate("ab"):
        world.join(peer, 0, sharer=sharer, sharers=2)
        world.begin(peer)
    world.told()
    return world


def attempt_of(world: World) -> Any:
    return world.parties.attempt


def kept(number: int = 7) -> Ticket:
    return Ticket(number, True, [KeptPiece((), b"3", 11, 5, (5,))])


# --- joining


def test_one_that_joins_is_told_that_the_job_is_ready() -> None:
    world = World()
    world.join("a", 0)
    assert world.told() == {"a": [Ready(64, "print")]}


def test_one_that_is_not_known_is_asked_who_it_is() -> None:
    world = World()
    world.say("a", WantBatches(0, (), 0))
    assert world.told() == {"a": [UnknownPeer()]}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"job": '{"seed": 2}'}, "serves another job, that of a: seed: 1 here, 2 there"),
        ({"layout": '{"pad": 2}'}, "pad: None here, 2 there"),
        ({"sharers": 2}, "1 processes share a rank as a says, and 2 as c does"),
    ],
)
def test_another_job_is_refused_with_the_difference(fields: dict[str, Any], says: str) -> None:
    world = World()
    for rank, peer in enumerate("ab"):
        world.join(peer, rank, job='{"seed": 1}')
    sharer = fields.get("sharers", 1) - 1
    newcomer = {"job": '{"seed": 1}', "sharer": sharer} | fields
    world.join("c", 1, **newcomer)
    world.now = 5
    for peer in "ab":
        world.say(peer, TrainerBeat(1, False))
    world.told()
    world.join("c", 1, **newcomer)
    (refused,) = world.told()["c"]
    assert isinstance(refused, PeerRejected)
    assert says in refused.reason


@pytest.mark.parametrize("ranks", [(), (2,), (0, 0)])
def test_ranks_outside_the_job_are_refused(ranks: tuple[int, ...]) -> None:
    world = World()
    world.join("a", *ranks)
    assert "not among the job's 2" in world.told()["a"][0].reason


def test_a_newcomer_waits_until_the_sitter_shows_that_it_is_here() -> None:
    world = World()
    world.join("a", 0)
    world.told()
    world.join("b", 0)
    assert world.told() == {"a": [BeatBack(0, "")]}
    world.now = 2
    world.say("a", TrainerBeat(1, False))
    world.told()
    world.join("b", 0)
    (refused,) = world.told()["b"]
    assert "a plays rank 0 of this job already" in refused.reason
    assert "the newcomer is b" in refused.reason


def test_a_newcomer_is_refused_when_a_silent_sitter_must_be_there() -> None:
    world = World()
    world.join("a", 0)
    world.join("b", 0)
    for seconds, is_refused in ((34, False), (1, True)):
        world.wait(seconds, "a")
        world.told()
        world.join("b", 0)
        assert any(isinstance(m, PeerRejected) for m in world.told().get("b", ())) == is_refused


def test_a_newcomer_gets_the_seat_of_one_that_cannot_be_reached() -> None:
    world = World()
    world.join("a", 0)
    world.join("b", 0)
    world.wait(1)
    world.told()
    world.join("b", 0)
    assert world.told() == {"b": [Ready(64, "print")]}


def test_one_that_is_silent_and_can_be_reached_stays() -> None:
    world = begun()
    world.wait(600, "a", "b")
    assert [*world.parties.peers] == [b"a", b"b"]
    world.wait(5, "a")
    assert [*world.parties.peers] == [b"a", b"b"]  # its connection may come back
    world.wait(3, "a")
    assert [*world.parties.peers] == [b"a"]


def test_who_leaves_is_answered_once_nobody_is_here() -> None:
    world = begun()
    world.say("a", LeaveJob())
    assert not world.told()
    world.say("b", LeaveJob())
    assert world.told() == {"a": [Bye()], "b": [Bye()]}
    assert world.parties.is_empty


# --- beginning


def test_a_run_begins_once_all_have_begun_it() -> None:
    world = World()
    world.join("a", 0)
    world.begin("a")
    assert world.parties.attempt is None
    world.join("b", 1)
    world.begin("b")
    assert attempt_of(world).start.at == AT
    assert world.told()["a"][-1] == RunBegun(0)


def test_no_run_begins_before_the_workers_are_known() -> None:
    world = World()
    world.parties = Parties(1, 1, int)
    world.join("a", 0)
    world.begin("a")
    assert world.parties.attempt is None
    world.parties.set_ready(3, "print")
    assert world.parties.attempt is not None


def test_a_run_is_played_from_the_one_farthest_behind_with_the_holes_of_all() -> None:
    world = World()
    world.join("a", 0)
    world.join("b", 1)
    world.begin("a", here=LATER, had=2, holes=(5,), known=(1,), samples=64)
    world.begin("b", here=AT, had=0, holes=(4,))
    start = attempt_of(world).start
    assert (start.at, start.holes, start.samples) == (AT, (4, 5), 64)
    assert attempt_of(world).known == (1,)
    assert world.told()["a"][-1] == RunBegun(0)


def test_what_a_rank_has_had_is_passed_over_and_freed() -> None:
    world = World()
    world.join("a", 0)
    world.join("b", 1)
    world.begin("a", here=LATER, had=1)
    world.begin("b")
    world.told()
    ticket = kept()
    assert attempt_of(world).wants_more(0)
    world.give(0, 0, ticket)
    assert world.parties.freed == [ticket]
    world.say("a", WantBatches(0, ((0, 2, 1),), 0))
    world.give(0, 1)
    assert [m.index for m in world.told()["a"]] == [1]


def test_of_two_ranks_of_a_process_one_may_have_had_more() -> None:
    world = World()
    world.join("a", 0, 1)
    world.begin("a", served=1)
    world.say("a", WantBatches(0, ((0, 1, 1), (1, 1, 0)), 0))
    for rank in (0, 1):
        world.give(rank, 0)
    assert [m.facts.rank for m in world.told()["a"] if isinstance(m, GiveBatch)] == [1]


@pytest.mark.parametrize("fields", [{"epoch": 1}, {"at": LATER}, {"costs": "other"}, {"run": 2}])
def test_those_that_are_apart_are_stopped_after_a_while(fields: dict[str, Any]) -> None:
    world = World()
    for rank, peer in enumerate("ab"):
        world.join(peer, rank)
        world.begin(peer, **(fields if peer == "b" else {}))
    world.wait(30, "a", "b")
    world.told()
    world.wait(10, "a", "b")
    stops = [each[-1] for each in world.told().values()]
    assert len(stops) == 2
    assert all("the ranks are not at one position: a begins run 0" in s.reason for s in stops)


def test_data_of_other_lengths_stop_the_run() -> None:
    world = World()
    for rank, peer in enumerate("ab"):
        world.join(peer, rank)
        world.begin(peer, samples=64 + rank)
    assert "data of 64 and 65 samples" in world.told()["a"][-1].reason


def test_one_may_begin_the_next_run_while_others_are_in_this() -> None:
    world = begun()
    ticket = kept()
    world.give(0, 0, ticket)
    attempt = world.parties.attempt
    world.begin("a", 1)
    assert world.parties.attempt is attempt
    assert world.parties.freed == [ticket]
    assert attempt_of(world).wants_more(0)
    world.begin("b", 1)
    assert attempt_of(world).key.run == 1


def test_one_ahead_of_a_newcomer_is_asked_whether_it_is_here() -> None:
    world = begun()
    world.begin("b", 1, epoch=1)
    world.say("a", LeaveJob())
    world.told()
    world.join("c", 0)  # of a later launch: b has ended, perhaps
    world.begin("c")
    assert world.told()["b"] == [UnknownPeer()]
    assert attempt_of(world) is None
    world.begin("b", 1, epoch=1)
    assert attempt_of(world).key.run == 0


def test_one_that_comes_back_makes_the_run_begin_again() -> None:
    world = begun()
    first = world.parties.attempt
    world.wait(31, "a")
    world.told()
    world.join("c", 1)
    world.begin("c")
    assert world.parties.attempt is None
    assert world.told()["a"] == [UnknownPeer()]
    world.begin("a", here=LATER, had=2)
    assert attempt_of(world).key == first.key
    assert world.parties.attempt is not first


def test_a_run_that_was_begun_goes_on_without_those_who_stay_away() -> None:
    world = World()
    world.join("a", 0)
    world.begin("a", here=LATER, had=2)
    world.wait(29, "a")
    assert world.parties.attempt is None
    world.wait(4, "a")
    assert attempt_of(world).start.at == LATER
    assert attempt_of(world).wants_more(1)


def test_the_next_run_is_stopped_if_one_has_gone_before_it() -> None:
    world = begun()
    world.say("b", LeaveJob())
    world.begin("a", 1)
    world.wait(119, "a")
    assert "a" not in world.told()
    world.wait(4, "a")
    (stop,) = world.told()["a"]
    assert stop.reason.startswith("b, gone, and the others have waited 120 s")


def test_why_a_run_was_stopped_is_told_again_until_another_is_begun() -> None:
    world = begun()
    world.parties.fail("no more", comes_again=True)
    stop = RunStops(0, "no more", True)
    assert world.told() == {"a": [stop], "b": [stop]}
    world.say("a", WantBatches(0, ((0, 1, 0),), 0))
    assert world.told() == {"a": [stop]}
    for peer in "ab":
        world.begin(peer, 1)
    assert attempt_of(world).key.run == 1


# --- giving


def test_no_more_is_given_than_was_asked_for() -> None:
    world = begun()
    assert not world.parties.attempt.wants_more(0)
    world.say("a", WantBatches(0, ((0, 1, 0),), 0))
    assert [*world.parties.attempt.to_look_at] == [0, 1]
    assert attempt_of(world).wants_more(0)
    world.give(0, 0)
    assert not world.parties.attempt.wants_more(0)
    assert [m.index for m in world.told()["a"]] == [0]


def test_a_ticket_is_free_when_all_sharers_have_it() -> None:
    world, ticket = sharing(), kept()
    for peer in "ab":
        world.say(peer, WantBatches(0, ((0, 4, 0),), 0))
    world.give(0, 0, ticket)
    world.say("a", WantBatches(0, ((0, 4, 1),), 0))
    assert not world.parties.freed
    world.say("b", WantBatches(0, ((0, 4, 1),), 0))
    world.say("b", WantBatches(0, ((0, 4, 1),), 0))
    assert world.parties.freed == [ticket]


def test_who_shares_a_rank_is_sent_what_is_less_than_two_steps_ahead_of_the_slowest() -> None:
    world = sharing()
    world.say("a", WantBatches(0, ((0, 9, 0),), 0))
    for step in range(2):
        assert world.parties.attempt.wants_more(0)
        world.give(0, step)
    world.give(0, 2)
    assert not world.parties.attempt.wants_more(0)
    assert [m.facts.step for m in world.told()["a"]] == [0, 1]
    world.say("a", WantBatches(0, ((0, 9, 2),), 0))
    assert not world.told()
    world.say("b", WantBatches(0, ((0, 9, 1),), 0))
    assert [m.facts.step for m in world.told()["a"]] == [2]


def test_a_sharer_that_is_gone_holds_nothing_up() -> None:
    world, ticket = sharing(), kept()
    world.say("a", WantBatches(0, ((0, 9, 0),), 0))
    world.give(0, 0, ticket)
    world.give(0, 1)
    world.give(0, 2)
    world.say("a", WantBatches(0, ((0, 9, 1),), 0))
    world.wait(31, "a")
    assert world.parties.freed == [ticket]
    assert [m.facts.step for m in world.told()["a"]] == [0, 1, 2]


def test_what_was_lost_is_sent_again_to_who_asks_a_second_later() -> None:
    world = begun()
    want = WantBatches(0, ((0, 2, 0),), 0)
    world.say("a", want)
    world.give(0, 0)
    world.parties.attempt.end(0, 5)
    first = world.told()["a"]
    assert first[1] == EndRun(0, 0, 1, 5)
    world.say("a", want)
    assert not world.told()
    world.now = 1
    world.say("a", want)
    assert sorted(map(repr, world.told()["a"])) == sorted(map(repr, first))


def test_a_ticket_whose_piece_is_made_again_is_sent_once_it_is_there() -> None:
    world, ticket = begun(), kept()
    world.say("a", WantBatches(0, ((0, 2, 0),), 0))
    world.give(0, 0, ticket)
    (before,) = world.told()["a"]
    ticket.pieces[0].worker, ticket.version = None, 1
    world.now = 9
    world.say("a", WantBatches(0, ((0, 2, 0),), 0))
    world.parties.attempt.renew(ticket)
    assert not world.told()
    ticket.pieces[0].worker, ticket.pieces[0].serial = b"4", 12
    world.parties.attempt.renew(ticket)
    (after,) = world.told()["a"]
    assert (after.version - before.version, after.pieces[0].token) == (1, 4)


def test_pieces_that_cannot_be_pulled_are_for_the_caller_to_send() -> None:
    world, ticket = begun(), kept()
    world.say("a", WantBatches(0, ((0, 1, 0),), 0))
    world.give(0, 0, ticket)
    (give,) = world.told()["a"]
    lost = LostPieces(0, 0, 0, give.version, (0,), "no route")
    world.say("a", lost)
    assert world.parties.lost == [(ticket, b"a", lost)]
    world.say("a", msgspec.structs.replace(lost, version=give.version - 1))
    assert len(world.parties.lost) == 1


# --- labels


def test_label_sums_are_told_to_all_who_count_also_late() -> None:
    world = begun()
    world.say("a", CountLabels(0, 0, 3, 10))
    assert not world.told()
    world.say("b", CountLabels(0, 1, 3, 5))
    total = LabelSum(0, 3, 15)
    assert world.told() == {"a": [total], "b": [total]}
    world.say("a", CountLabels(0, 0, 3, 10))
    assert world.told() == {"a": [total]}


def test_sharers_that_count_otherwise_stop_the_run() -> None:
    world = sharing()
    world.say("a", CountLabels(0, 0, 3, 10))
    world.say("b", CountLabels(0, 0, 3, 11))
    assert "share rank 0 count 11 and 10 label tokens" in world.told()["b"][-1].reason


def test_counts_of_one_that_is_gone_are_forgotten() -> None:
    world = begun()
    world.say("a", CountLabels(0, 0, 3, 10))
    world.say("a", LeaveJob())
    world.say("b", CountLabels(0, 1, 3, 5))
    assert not any(isinstance(m, LabelSum) for m in world.told().get("b", []))


# --- what is waited for


def waiting(world: World, peer: str) -> str:
    world.now += 2
    world.say(peer, TrainerBeat(1, True))
    answer = next(m for m in world.told()[peer] if isinstance(m, BeatBack))
    return answer.waiting


def test_a_beat_says_who_is_missing() -> None:
    world = World()
    world.join("a", 0)
    assert waiting(world, "a") == "ranks 1: not here"
    world.join("b", 1)
    world.begin("a")
    assert waiting(world, "a") == "b, to begin the run"
    world.begin("b")
    assert waiting(world, "a") == "its workers"
    world.say("a", CountLabels(0, 0, 3, 10))
    assert waiting(world, "a") == "the label tokens of step 3 from ranks 1"
    world.say("b", LeaveJob())
    world.say("a", WantBatches(0, ((0, 1, 0),), 0))
    assert "b, gone" in waiting(world, "a") or "label tokens" in waiting(world, "a")


def test_a_beat_of_who_has_ended_a_run_names_those_who_are_still_in_it() -> None:
    world = begun()
    world.begin("a", run=1)
    assert waiting(world, "a") == "b, to begin the run"


def test_a_beat_names_the_sharer_that_asks_for_nothing() -> None:
    world = sharing()
    world.say("a", WantBatches(0, ((0, 9, 0),), 0))
    world.give(0, 0)
    world.say("a", WantBatches(0, ((0, 9, 1),), 0))
    assert waiting(world, "a") == "b, which shares rank 0"


def test_a_message_of_a_balancer_travels() -> None:
    world, ticket = begun(), kept()
    world.say("a", WantBatches(0, ((0, 1, 0),), 0))
    world.give(0, 0, ticket)
    (give,) = world.told()["a"]
    packed = msgspec.msgpack.encode(give)
    assert msgspec.msgpack.decode(packed, type=GiveBatch) == give


def count_lines(ranks: int) -> list[int]:
    """Return how many lines a message of a process runs in a job of so many ranks."""
    world = World(ranks)
    for rank in range(ranks):
        world.join(str(rank), rank)
        world.begin(str(rank))
    world.say("1", CountLabels(0, 1, 0, 5), TrainerBeat(1, True))
    world.told()
    lines: list[int] = []
    for message in (
        JoinJob((1,), 0, 1, "{}", "{}", 0, "1"), WantBatches(0, ((1, 4, 0),), 0),
        CountLabels(0, 1, 0, 5), TrainerBeat(2, True), LeaveJob(),
    ):  # fmt: skip
        lines.append(0)

        def note(_frame: Any, event: str, _argument: Any) -> Any:
            lines[-1] += event == "line"
            return note

        before = sys.gettrace()
        sys.settrace(note)
        try:
            world.say("1", message)
        finally:
            sys.settrace(before)
    return lines


def test_the_work_of_a_message_does_not_grow_with_the_ranks() -> None:
    assert count_lines(16) == count_lines(512)
