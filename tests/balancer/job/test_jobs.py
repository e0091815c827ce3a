"""Who is let into a balancer's jobs, what they are told, and when a job is over: no socket."""

import json
import logging
import re
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from counterpoise.balancer.job.jobs import FORGOTTEN_S, PlayedJobs
from counterpoise.balancer.job.messages import (
    JobNotOpened,
    JobOpened,
    JoinPool,
    LeavePool,
    NameSamples,
    OpenJob,
    PulledFrames,
    PullFrames,
    RelayedPiece,
    SampleNames,
    WorkersAt,
)
from counterpoise.balancer.parties.messages import (
    BeatBack,
    BeginRun,
    GiveBatch,
    JoinJob,
    LeaveJob,
    LostPieces,
    RunBegun,
    RunStops,
    TrainerBeat,
    WantBatches,
)
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.pool.messages import DoPart, PartMade, PoolBeat
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import (
    BalancerStops,
    Bye,
    JobList,
    ListJobs,
    PeerRejected,
    UnknownPeer,
)
from counterpoise.balancer.protocol.parts import EpochPosition, Ready
from counterpoise.balancer.protocol.records import VERSION
from counterpoise.balancer.run.tasks import RunError

START = EpochPosition(0, 0, 0, 0, "")
PLAN = PlanConfig(ranks=1, samples_per_step=4, accumulate=1, resources=("tokens",), budgets=(None,))
JOB, LAYOUT = JobSpec(PLAN), json.dumps({"kind": "stacked", "takes_empty": True})
HELLO = JoinJob((0,), 0, 1, to_json(JOB), LAYOUT, 1, "process 0")
WORKER = JoinPool("w", 1, "direct", "tcp://host:1", b"", 1 << 30)
RANK, W = b"run|rank.1", b"run|w.1"


class Balancer:
    """A balancer's jobs; `say` returns what is sent, by peer."""

    def __init__(self, *only: str) -> None:
        self.jobs = PlayedJobs(1, lambda _: (b"", b"secret"), frozenset(only))
        self.now = 0.0

    def say(self, peer: bytes, *messages: Any, frames: tuple[bytes, ...] = ()) -> dict[bytes, Any]:
        sends = []
        self.now += 0.002  # turns are not closer together than PACE_S
        for message in messages:
            sends += self.jobs.handle(peer, message, frames, self.now)
        return self._by_peer(sends + self.jobs.tick(self.now))

    def wait(self, seconds: float, *alive: bytes) -> dict[bytes, Any]:
        """Let time pass, in which these trainers and workers beat."""
        sends, until = [], self.now + seconds
        while self.now < until:
            self.now += 0.5
            for peer in alive:
                beat = TrainerBeat(1, False) if b"rank" in peer else PoolBeat(0, -1, False, ())
                sends += self.jobs.handle(peer, beat, (), self.now)
            sends += self.jobs.tick(self.now)
        return self._by_peer(sends)

    def lose(self, peer: bytes) -> dict[bytes, Any]:
        self.now += 0.002
        self.jobs.unreachable(peer, self.now)
        return self._by_peer(self.jobs.tick(self.now))

    def knows(self, peer: bytes) -> bool:
        job = self.jobs.jobs["run"]
        return peer in job.parties.peers or peer in job.admission.workers

    @staticmethod
    def _by_peer(sends: list[Any]) -> dict[bytes, Any]:
        told: dict[bytes, Any] = {}
        for send in sends:
            told.setdefault(send.peer, []).append(send.message)
        return told

    def open(self, peer: bytes, hello: JoinPool = WORKER, **facts: Any) -> dict[bytes, Any]:
        """A worker joins, and opens the source; it answers as often as it is asked."""
        told = self.say(peer, hello)
        for _ in range(2):
            asked = [m for m in told.get(peer, ()) if isinstance(m, OpenJob)]
            if asked:
                opened = JobOpened(asked[0].number, 8, "print", (), False, True)
                told = self.say(peer, structs.replace(opened, **facts))
        return told


def begun(told: dict[bytes, Any], *kinds: type) -> list[Any]:
    return [m for messages in told.values() for m in messages if isinstance(m, kinds)]


def started(hello: JoinJob = HELLO) -> Balancer:
    """A job with a trainer that has begun, and a worker."""
    balancer = Balancer()
    balancer.say(RANK, hello)
    balancer.say(RANK, BeginRun(0, 0, START, "", -1, START, 0, 0, (), ()))
    balancer.open(W)
    return balancer


# --- who may bring a job


def test_a_job_is_there_with_its_first_trainer_and_workers_see_it() -> None:
    balancer = Balancer()
    assert balancer.say(b"|fleet.1", ListJobs()) == {b"|fleet.1": [JobList(())]}
    assert balancer.say(W, WORKER) == {}  # it is early: it asks which jobs there are
    balancer.say(RANK, HELLO)
    assert balancer.say(b"|fleet.1", ListJobs())[b"|fleet.1"] == [JobList(("run",))]
    assert balancer.say(b"other|fleet.1", ListJobs())[b"other|fleet.1"] == [JobList(())]


OTHER_VERSION = f"has counterpoise 0.0.1, and the balancer {VERSION}"
WITH_SOURCE = structs.replace(HELLO, job=to_json(replace(JOB, source={"a": 1})))
REFUSED = [
    (structs.replace(HELLO, version="0.0.1"), OTHER_VERSION),
    (structs.replace(HELLO, job="{}"), "not a job"),
    (structs.replace(HELLO, job="[}"), "Expecting value"),
    (structs.replace(HELLO, layout='{"kind": "pickled", "takes_empty": true}'), "allowed are"),
    (structs.replace(HELLO, layout="[]"), "allowed are"),
    (structs.replace(HELLO, ranks=(1,)), "ranks (1,) are not among the job's 1"),
    (structs.replace(HELLO, ranks=()), "ranks () are not among the job's 1"),
    (structs.replace(HELLO, sharer=1), "sharer 1 is not among the 1"),
    (structs.replace(WITH_SOURCE, layout=LAYOUT.replace("stacked", "workers")), '"workers" only'),
]


@pytest.mark.parametrize(("hello", "says"), REFUSED)
def test_a_trainer_is_refused_with_the_reason(hello: JoinJob, says: str) -> None:
    (refused,) = Balancer().say(RANK, hello)[RANK]
    assert isinstance(refused, PeerRejected)
    assert says in refused.reason


def test_jobs_are_allowed_by_name() -> None:
    (refused,) = Balancer("other").say(RANK, HELLO)[RANK]
    assert refused.reason == "this balancer serves job other only, and not run"


def test_another_job_of_the_name_waits_until_it_is_known_who_is_here() -> None:
    balancer = started()
    other = structs.replace(
        HELLO, job=to_json(replace(JOB, on_error="skip")), name="process 9", incarnation=5
    )
    told = balancer.say(b"run|rank.2", other)
    assert begun(told, PeerRejected) == []
    assert told[RANK] == [BeatBack(0, "")]  # which shows whether it is here
    balancer.wait(2, RANK, W)
    (refused,) = balancer.say(b"run|rank.2", other)[b"run|rank.2"]
    assert refused.reason == (
        "this balancer serves another job, that of process 0: on_error: 'raise' here, 'skip' there"
    )


def test_once_its_trainers_have_left_another_takes_the_place_of_a_job() -> None:
    balancer = started()
    assert balancer.say(RANK, LeaveJob())[RANK] == [Bye()]
    other = structs.replace(HELLO, job=to_json(replace(JOB, on_error="skip")))
    told = balancer.say(b"run|rank.2", other)
    assert told[W] == [UnknownPeer()]  # it begins anew
    opened = begun(balancer.say(W, WORKER), OpenJob)
    assert json.loads(opened[0].job)["on_error"] == "skip"


def test_an_unreachable_trainer_goes_if_a_newcomer_waits_for_its_seat() -> None:
    balancer = started()
    balancer.lose(RANK)
    assert balancer.knows(RANK)  # its connection may come back
    newcomer = structs.replace(HELLO, name="process 7")
    balancer.say(b"run|rank.2", newcomer)
    balancer.lose(RANK)
    assert begun(balancer.say(b"run|rank.2", newcomer), Ready) != []


def test_a_job_without_trainers_and_workers_is_forgotten_in_time() -> None:
    balancer = started()
    balancer.say(RANK, LeaveJob())
    balancer.say(W, LeavePool())
    balancer.wait(FORGOTTEN_S - 1)
    assert [*balancer.jobs.jobs] == ["run"]
    balancer.wait(2)
    assert [*balancer.jobs.jobs] == []
    assert balancer.say(RANK, TrainerBeat(1, False)) == {RANK: [UnknownPeer()]}
    assert balancer.say(RANK, LeaveJob()) == {RANK: [Bye()]}


def test_a_balancer_that_ends_says_so_to_trainers() -> None:
    balancer = started()
    assert [(send.peer, send.message) for send in balancer.jobs.stop()] == [(RANK, BalancerStops())]


# --- workers


def test_a_worker_is_given_the_job_again_until_it_has_opened_the_source() -> None:
    balancer = Balancer()
    balancer.say(RANK, HELLO)
    (first,) = balancer.say(W, WORKER)[W]
    assert (first.job, first.layout, first.secret) == (HELLO.job, LAYOUT, b"secret")
    assert balancer.say(W, WORKER)[W] == [first]
    assert balancer.wait(6, RANK, W)[W] == [first]


def test_one_that_joins_again_after_it_was_ready_is_another() -> None:
    balancer = started()
    (again,) = begun(balancer.say(W, WORKER), OpenJob)
    assert balancer.jobs.jobs["run"].pool.workers == {}
    balancer.say(W, JobOpened(again.number, 8, "print", (), False, True))
    assert [*balancer.jobs.jobs["run"].pool.workers] == [W]


def test_a_newer_process_of_a_name_replaces_the_older_which_is_told() -> None:
    balancer = started()
    told = balancer.say(b"run|w.2", structs.replace(WORKER, incarnation=2))
    assert told[W] == [Bye()]
    assert balancer.jobs.jobs["run"].pool.workers == {}
    assert balancer.say(W, WORKER)[W] == [Bye()]  # one that goes on after a pause


def test_one_without_heartbeats_is_lost_and_told_to_say_hello_again() -> None:
    balancer = started()
    balancer.wait(20, RANK, W)
    assert balancer.knows(W)
    balancer.wait(20, RANK)
    assert not balancer.knows(W)
    assert balancer.say(W, PoolBeat(0, -1, False, ()))[W] == [UnknownPeer()]


def test_one_that_cannot_be_reached_is_lost_at_once() -> None:
    balancer = started()
    balancer.lose(W)
    job = balancer.jobs.jobs["run"]
    assert (job.pool.workers, job.events.lost) == ({}, 1)
    assert [*job.events.last_lost] == ["w (its connection has ended)"]


def test_a_sample_of_which_all_workers_die_is_given_up_by_the_name_that_they_give_it() -> None:
    """There is one worker at a time: what is known of the samples stays where it comes again."""
    balancer, stops = started(), list[RunStops]()
    balancer.say(RANK, WantBatches(0, ((0, 4, 0),), 0))
    balancer.lose(W)
    for number in range(2, 3 * 8 + 4):  # each sample kills three, and before that they are together
        worker = b"run|w.%d" % number
        told = balancer.open(worker, structs.replace(WORKER, name=f"w{number}"))
        for asked in begun(told, NameSamples):
            assert told[worker][0] is asked  # before the part of which it may die
            names = tuple(f"k{index}" for index in asked.indexes)
            balancer.say(worker, SampleNames(asked.indexes, names))
        if stops := begun(balancer.lose(worker), RunStops):
            break
    assert re.search(r"sample 'k[0-7]'.* 3 worker processes died", stops[0].reason)


def test_one_that_begins_anew_or_is_turned_away_has_not_died_of_a_sample() -> None:
    balancer = started()
    pool = balancer.jobs.jobs["run"].pool
    balancer.say(RANK, WantBatches(0, ((0, 4, 0),), 0))
    balancer.open(W)
    assert pool.workers[W].givings
    balancer.say(W, structs.replace(WORKER, version="0.2.0"))
    assert (pool.workers, pool.deaths) == ({}, {})
    balancer.open(W)
    balancer.lose(W)
    assert pool.deaths


def test_one_that_is_to_end_may_once_it_keeps_nothing() -> None:
    balancer = Balancer()
    balancer.say(RANK, HELLO)
    balancer.open(W)
    told = balancer.say(W, PoolBeat(0, -1, True, ()))
    assert begun(told | balancer.wait(1.5, RANK), Bye) != []
    told = balancer.say(b"run|x.2", PoolBeat(0, -1, True, ()))
    assert told[b"run|x.2"] == [Bye()]  # and so may one that is not known


def test_one_of_another_version_is_refused() -> None:
    balancer = Balancer()
    balancer.say(RANK, HELLO)
    (refused,) = balancer.say(W, structs.replace(WORKER, version="0.2.0"))[W]
    assert f"has counterpoise 0.2.0, and the balancer {VERSION}" in refused.reason
    assert balancer.jobs.jobs["run"].events.turned_away == 1


def test_one_with_other_data_is_refused_while_the_first_is_here() -> None:
    balancer = started()
    told = balancer.open(b"run|v.2", structs.replace(WORKER, name="v"), count=9)
    (refused,) = begun(told, PeerRejected)
    assert "(fingerprint print, 9 samples; the others have print, 8, as worker w" in refused.reason


def test_those_who_said_otherwise_are_sent_something_first() -> None:
    balancer = started()
    (first,) = balancer.say(b"run|v.2", structs.replace(WORKER, name="v"))[b"run|v.2"]
    other = JobOpened(first.number, 9, "new", (), False, True)
    told = balancer.say(b"run|v.2", other)
    assert (told[b"run|v.2"], W in told) == ([first], True)
    balancer.lose(W)
    told = balancer.say(b"run|v.2", other)
    assert begun(told, Ready) == [Ready(9, "new")]


def test_after_the_first_has_gone_the_next_says_what_the_data_are() -> None:
    balancer = started()
    balancer.say(W, LeavePool())
    told = balancer.open(b"run|v.2", structs.replace(WORKER, name="v"), count=9, fingerprint="new")
    assert begun(told, Ready) == [Ready(9, "new")]
    assert begun(told, RunBegun) != []


def test_a_ledger_says_how_many_samples_there_are() -> None:
    balancer = Balancer()
    balancer.say(RANK, HELLO)
    balancer.open(W)
    told = balancer.say(RANK, BeginRun(0, 0, START, "", 9, START, 0, 0, (), ()))
    (refused,) = begun(told, PeerRejected)
    assert refused.reason.startswith(
        "this worker has 8 samples, and the trainer goes on in data of 9"
    )
    (beat,) = begun(balancer.say(RANK, TrainerBeat(1, True)), BeatBack)
    assert beat.waiting.startswith("a worker to connect; worker w was refused: this worker has 8")
    told = balancer.open(b"run|v.2", structs.replace(WORKER, name="v"), count=9)
    assert begun(told, RunBegun) != []


def test_where_only_refused_workers_come_trainers_are_told_and_end() -> None:
    balancer = Balancer()
    balancer.say(RANK, HELLO, BeginRun(0, 0, START, "", 9, START, 0, 0, (), ()))
    balancer.open(W)
    (stops,) = begun(balancer.wait(130, RANK), RunStops)
    assert stops.reason.startswith("worker w was refused: this worker has 8 samples")
    assert stops.reason.endswith("no other has come for 120 s")


def test_what_cannot_be_planned_of_a_source_is_refused() -> None:
    balancer = Balancer()
    balancer.say(RANK, HELLO)
    for columns in ((b"12345",), (b"\xff" * 64,)):
        (refused,) = begun(balancer.open(W, columns=columns), PeerRejected)
        assert "costs" in refused.reason


def test_one_that_cannot_open_the_source_waits_for_what_the_others_say() -> None:
    balancer = Balancer()
    balancer.say(RANK, HELLO)
    (opening,) = balancer.say(b"run|v.2", structs.replace(WORKER, name="v"))[b"run|v.2"]
    balancer.say(W, WORKER)
    assert balancer.say(b"run|v.2", JobNotOpened(opening.number, "no such file")) == {}
    told = balancer.open(W)
    (refused,) = told[b"run|v.2"]
    assert refused.reason == "this worker cannot do what others can: no such file"


def test_the_run_fails_when_no_worker_is_left_that_could_do_it() -> None:
    balancer = Balancer()
    balancer.say(RANK, HELLO, BeginRun(0, 0, START, "", -1, START, 0, 0, (), ()))
    openings = [
        balancer.say(peer, structs.replace(WORKER, name=peer.decode()))[peer][0]
        for peer in (b"run|v.2", W)
    ]
    for peer in (b"run|v.2", W):
        told = balancer.say(peer, JobNotOpened(openings[0].number, "no such file"))
    (stops,) = begun(told | balancer.wait(1, RANK, W, b"run|v.2"), RunStops)
    assert stops.reason == "worker run|w.1: no such file (and so do 1 others)"


# --- frames


def with_batch(worker: JoinPool = WORKER) -> tuple[Balancer, Any, Any]:
    """A balancer whose trainer is given its first microbatch; that, and what came before it."""
    balancer = Balancer()
    balancer.say(RANK, HELLO, BeginRun(0, 0, START, "", -1, START, 0, 0, (), ()))
    column = b"".join((5).to_bytes(8, "little") for _ in range(8))
    parts = begun(balancer.open(W, worker, columns=(column,)), DoPart)
    balancer.say(RANK, WantBatches(0, ((0, 1, 0),), 0))
    return balancer, *made(balancer, parts[0])


def made(balancer: Balancer, part: DoPart) -> tuple[Any, list[Any]]:
    names = tuple(map(str, part.task[3:])) if part.task[2] & 1 else ()
    answer = PartMade(part.number, 70, 9, (9,), names, (), (), (), -1, 9, 1000)
    told = balancer.say(W, answer)[RANK]
    return told[-1], told[:-1]


def lost(give: GiveBatch) -> LostPieces:
    return LostPieces(0, 0, give.index, give.version, (0,), "cut")


def test_where_a_worker_is_is_told_before_the_first_microbatch_that_names_it() -> None:
    _, give, before = with_batch()
    assert isinstance(give, GiveBatch)
    (at,) = before
    assert isinstance(at, WorkersAt)
    (server,) = at.servers
    assert (server.token, server.address) == (give.pieces[0].token, "tcp://host:1")
    assert (server.public, server.secret) == (b"", b"secret")


def test_what_cannot_be_pulled_is_relayed_and_is_asked_for_once_a_second() -> None:
    balancer, give, (at,) = with_batch()
    told = balancer.say(RANK, lost(give))
    assert (told[RANK], told[W]) == ([at], [PullFrames(70, at.servers[0].token, 70, ())])
    assert W not in balancer.say(RANK, lost(give))
    balancer.now += 0.002
    sends = balancer.jobs.handle(W, PulledFrames(70, 1), (b"frames",), balancer.now)
    (send,) = [*sends, *balancer.jobs.tick(balancer.now)]
    assert (send.peer, send.payloads) == (RANK, (b"frames",))
    assert send.message == RelayedPiece(0, 0, 0, give.version, 0, 1)


def test_what_is_gone_is_made_again() -> None:
    balancer, give, _ = with_batch()
    balancer.say(RANK, lost(give))
    (part,) = begun(balancer.say(W, PulledFrames(70, 0)), DoPart)
    again, _ = made(balancer, part)
    assert again.version > give.version


# --- faults


def test_a_job_in_which_the_balancer_fails_ends_and_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    balancer = started()
    balancer.say(b"other|rank.1", HELLO)
    balancer.say(RANK, WantBatches(0, ((0, 4, 0),), 0))
    monkeypatch.setattr(balancer.jobs.jobs["run"].pool, "take", {}.__getitem__)
    (refused,) = balancer.say(W, PoolBeat(0, -1, False, ()))[RANK]
    assert refused.reason.startswith("the balancer has failed in this job: TypeError")
    assert [*balancer.jobs.jobs] == ["other"]
    assert "job run ends" in caplog.text


# --- the log


def test_what_happens_is_logged_a_line_an_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    balancer = started()
    balancer.lose(W)
    balancer.say(RANK, LeaveJob())
    balancer.wait(FORGOTTEN_S + 1)
    assert [(vars(r)["event"], r.getMessage()) for r in caplog.records] == [
        ("job", "job run has come"),
        ("join", "job run: rank 0 (process 0) has come"),
        ("join", "job run: worker w has come"),
        ("ready", "job run: worker w has the data open"),
        ("epoch", "job run: epoch 0 begins"),
        ("lost", "job run: worker w is lost (its connection has ended)"),
        ("leave", "job run: rank 0 (process 0) has gone"),
        ("job", "job run is over: its ranks have gone"),
    ]
    assert [vars(r).get("worker") for r in caplog.records][2:4] == ["w", "w"]


def test_the_end_of_a_run_is_logged_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    balancer = started()
    balancer.jobs.jobs["run"].player.fail(RunError("too much"))
    told = balancer.wait(1, RANK, W)
    assert begun(told, RunStops) == [RunStops(0, "too much", False)]
    (failure,) = [r for r in caplog.records if vars(r).get("event") == "failure"]
    assert (failure.getMessage(), failure.levelname) == ("job run fails: too much", "ERROR")
