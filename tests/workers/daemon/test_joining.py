"""A worker comes to a job, opens its source, and begins anew where a balancer does not know it."""

import time
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from counterpoise.balancer.job.messages import (
    JobNotOpened,
    JobOpened,
    JoinPool,
    LeavePool,
    PulledFrames,
    PullFrames,
)
from counterpoise.balancer.pool.messages import PartMade
from counterpoise.balancer.protocol.messages import Bye, PeerRejected, UnknownPeer
from counterpoise.workers.daemon.job_worker import BEAT_S, HELLO_S, REJOIN_S
from counterpoise.workers.serving.frame_store import FrameStore
from counterpoise.workers.sources.plain import PlainSource, as_source
from tests.workers.daemon.played import job_of
from tests.workers.daemon.scripted import (
    HELLO,
    TOKEN,
    Clock,
    Numbers,
    ScriptedWorker,
    load,
    opening,
    tokens_of,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    return made


def joined(**more: Any) -> ScriptedWorker:
    made = ScriptedWorker(**more)
    made.hear()
    made.open()
    return made


def test_a_hello_says_who_it_is_and_what_may_be_kept_and_comes_again(clock) -> None:
    worker = ScriptedWorker()
    (hello,) = worker.hear()
    assert hello == structs.replace(HELLO, most_bytes=1 << 20)
    clock.now += HELLO_S / 2
    assert worker.hear() == []
    clock.now += HELLO_S / 2
    assert worker.hear() == [hello]
    worker.open()
    clock.now += 10 * HELLO_S
    assert worker.hear() == []


def test_the_source_is_told_as_planning_needs_it() -> None:
    worker = ScriptedWorker(source=PlainSource(Numbers(3), {"tokens": [4, 5, 6]}))
    source = worker.source
    columns = (bytes([4, 5, 6]),)
    assert worker.open() == JobOpened(1, 3, source.fingerprint(), columns, False, False)


def test_costs_that_only_loading_shows_are_no_columns() -> None:
    told = ScriptedWorker().open()
    assert (told.columns, told.loads_first) == ((), True)


def test_a_source_that_cannot_be_opened_is_told_and_tried_again_when_it_is_asked_for(clock) -> None:
    worker = ScriptedWorker(source=OSError("no disk"))
    failed = JobNotOpened(1, "OSError: no disk")
    # questions that have come meanwhile are answered likewise
    assert worker.hear(opening(), opening(), opening()) == [failed] * 3
    assert worker.opened == 1
    clock.now += 1
    worker.source = as_source(Numbers(3), tokens_of)
    assert isinstance(worker.open(), JobOpened)


def test_a_source_that_fails_when_it_is_asked_what_it_is_makes_no_parts() -> None:
    class Unnamed(PlainSource):
        def fingerprint(self) -> str:
            raise OSError("no disk")

    worker = ScriptedWorker(source=Unnamed(Numbers(3)))
    assert worker.open() == JobNotOpened(1, "OSError: no disk")
    assert worker.hear(load(5, 1, 2)) == []


def test_whom_the_balancer_names_may_pull() -> None:
    class Server:
        store = FrameStore()
        admitted: tuple[bytes, ...] = ()

        def admit(self, *credentials: bytes) -> None:
            self.admitted = credentials

    server: Any = Server()
    ScriptedWorker(server=server).open()
    assert (server.store.token, server.admitted) == (TOKEN, (b"", b"password"))


def test_a_job_that_comes_again_is_answered_again() -> None:
    worker = ScriptedWorker()
    first = worker.open()
    worker.hear(load(5, 1, 2))
    assert worker.open() == first
    assert (worker.opened, worker.kept()) == (1, [1])


def test_of_another_balancer_the_source_stays_open_and_nothing_is_kept() -> None:
    worker = ScriptedWorker()
    first = worker.open()
    worker.hear(load(5, 1, 2))
    assert worker.open(2) == structs.replace(first, number=2)
    assert (worker.opened, worker.kept()) == (1, [])
    (again,) = worker.hear(load(5, 1, 2))
    assert isinstance(again, PartMade)
    assert worker.kept() == [2]  # no serial comes twice


@pytest.mark.parametrize(
    "other", [{"job": replace(job_of(), on_error="skip")}, {"layout": {"kind": "samples"}}]
)
def test_another_job_is_opened_anew(other) -> None:
    worker = ScriptedWorker()
    worker.open()
    worker.open(2, **other)
    assert worker.opened == 2


def test_a_balancer_that_does_not_know_the_worker_is_said_hello_once(clock) -> None:
    worker = joined()
    worker.hear(load(5, 1, 2))
    clock.now += REJOIN_S
    (hello,) = worker.hear(UnknownPeer(), UnknownPeer())
    assert isinstance(hello, JoinPool)
    assert worker.kept() == []
    assert worker.hear(UnknownPeer()) == []
    clock.now += REJOIN_S
    assert worker.hear() == [hello]


def test_a_late_answer_of_the_balancer_before_frees_nothing(clock) -> None:
    worker = joined()
    worker.hear(load(5, 1, 2))
    assert worker.hear(UnknownPeer()) == []
    assert worker.kept() == [1]


def test_heartbeats_are_sent_while_it_waits(clock) -> None:
    worker = joined()
    worker.beats.clear()
    for _ in range(4):
        clock.now += BEAT_S / 2
        worker.hear()
    assert len(worker.beats) == 2


def test_a_worker_that_begins_anew_says_nothing_of_what_it_had(clock) -> None:
    worker = joined()
    worker.hear(load(5, 1, 2))
    asked = PullFrames(1, worker.worker.store.token, 1, ())
    assert isinstance(worker.hear(asked)[0], PulledFrames)
    clock.now += REJOIN_S
    # It would seem to have announced what it has not, and be turned away.
    said = worker.hear(UnknownPeer(), asked)
    assert not any(isinstance(message, PulledFrames) for message in said)


def test_parts_that_come_before_the_job_are_not_made() -> None:
    worker = ScriptedWorker()
    assert all(isinstance(said, JoinPool) for said in worker.hear(load(5, 1, 2)))


@pytest.mark.parametrize(
    ("message", "said"), [(PeerRejected("other data"), ["other data"]), (Bye(), [LeavePool(), ""])]
)
def test_a_worker_ends_as_it_is_told(message, said) -> None:
    assert joined().hear(message) == said
