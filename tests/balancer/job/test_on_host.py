"""Trainers of one host, which start their workers anew for each run: who takes part, and when."""

import json
from typing import Any

import numpy as np
import pytest

from counterpoise.balancer.job.effects import Send
from counterpoise.balancer.job.job import PlayedJob
from counterpoise.balancer.job.messages import JobOpened, JoinPool, LeavePool, OpenJob, WorkersAt
from counterpoise.balancer.parties.messages import BeatBack
from counterpoise.balancer.parties.parties import PROBE_S, UNREACHABLE_S
from counterpoise.balancer.parties.trainer_session import TrainerSession
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.pool.messages import DoPart, PartMade
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.run.tasks import RunStart
from tests.balancer.job.cluster import START

LAYOUT = json.dumps({"kind": "workers", "takes_empty": False})
JOB = JobSpec(PlanConfig(1, 4, 1, ("tokens",), (None,), "fixed", batch_size=4))
COUNT = 8
SHARERS = (0, 1)


class Host:
    """A job, two trainers that share its rank, and workers. told: what the job has sent, by peer.

    Each worker makes nothing; `make` says what is made of all that one has.
    """

    def __init__(self, sharers: int = 2) -> None:
        self.now = 0.0
        self.job = PlayedJob(to_json(JOB), LAYOUT)
        self.told: dict[bytes, list[Any]] = {}
        self.gone: set[bytes] = set()
        self.trainers = [
            TrainerSession((0,), to_json(JOB), LAYOUT, 8, n, 2, name=f"process {n}")
            for n in range(sharers)
        ]

    def turn(self, waits: bool = False) -> None:
        """Have all that is to be said be said, until nothing is; see take_messages for `waits`."""
        said = True
        while said:
            said = False
            for number, trainer in enumerate(self.trainers):
                for message in (
                    trainer.take_messages(waits) if peer(number) not in self.gone else ()
                ):
                    said = True
                    self.job.receive(peer(number), message, (), self.now)
            sends = self.job.turn(self.now)
            for send in sends:
                said = True
                self._take(send)

    def _take(self, send: Send) -> None:
        if send.peer in self.gone:
            self.job.unreachable(send.peer, self.now)
            return
        self.told.setdefault(send.peer, []).append(send.message)
        for number, trainer in enumerate(self.trainers):
            if send.peer == peer(number) and not isinstance(send.message, WorkersAt):
                trainer.receive(send.message)  # type: ignore[arg-type]
                for pull in trainer.take_pulls():
                    trainer.note_pulled(pull.rank, pull.index, pull.version, pull.number, ())

    def begin(self, *numbers: int) -> None:
        for number in numbers:
            self.trainers[number].begin(RunStart(0, START))
        self.turn()

    def pass_time(self, seconds: float) -> None:
        """Let time pass: trainers say nothing by themselves."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            self.turn()

    def join(self, name: str, run: int) -> None:
        """Have a worker say hello."""
        hello = JoinPool(name, 1, "", "", b"", 1 << 30, run=run)
        self.job.receive(name.encode(), hello, (), self.now)
        self.turn()

    def has_job(self, name: str) -> bool:
        return any(isinstance(each, OpenJob) for each in self.told.get(name.encode(), ()))

    def open(self, name: str, tokens: int = 1) -> None:
        """Have a worker open its source, of which each sample costs so many tokens."""
        costs = np.full(COUNT, tokens, np.int64).tobytes()
        number = self.job.opening.number
        opened = JobOpened(number, COUNT, "print", (costs,), loads_first=False, names=True)
        self.job.receive(name.encode(), opened, (), self.now)
        self.turn()

    def make(self, name: str) -> None:
        """Have a worker make what it was given."""
        while parts := [m for m in self.told.get(name.encode(), ()) if isinstance(m, DoPart)]:
            self.told[name.encode()] = []
            for part in parts:
                n, asks_names = part.number, part.task[2] & 1
                names = tuple(map(str, part.task[3:])) if asks_names else ()
                made = PartMade(n, n, 8, (8,), names, (), (), (), -1, 8, 1000)
                self.job.receive(name.encode(), made, (), self.now)
            self.turn()

    def costs_of(self, number: int) -> set[int]:
        """Return what microbatches cost that a trainer has, which it takes."""
        found, trainer = set(), self.trainers[number]
        while (batch := trainer.peek()) is not None:
            found |= {*batch.give.facts.costs}
            trainer.release(batch)
            self.turn()
        self.turn(waits=True)  # for the end
        return found


def peer(number: int) -> bytes:
    return f"trainer {number}".encode()


def test_workers_wait_until_all_have_begun_their_run() -> None:
    host = Host()
    host.begin(0)
    host.join("w", run=0)
    assert not host.has_job("w")
    host.begin(1)
    assert host.has_job("w")
    host.join("w2", run=1)
    assert not host.has_job("w2")


def test_persistent_workers_do_not_wait() -> None:
    host = Host()
    host.begin(0)
    host.join("w", run=-1)
    assert host.has_job("w")


@pytest.mark.parametrize("is_told", [True, False])
def test_the_workers_of_a_run_are_the_ones_that_say_what_it_reads(is_told: bool) -> None:
    host = Host()
    host.begin(*SHARERS)
    host.join("w", run=0)
    host.open("w", tokens=1)
    host.make("w")
    assert host.costs_of(0) == host.costs_of(1) == {4}
    host.join("w2", run=1)
    if is_told:  # else the message is lost
        host.job.receive(peer(0), LeavePool(("w",)), (), host.now)
    host.begin(*SHARERS)
    assert host.has_job("w2")
    assert b"w" not in host.job.admission.workers
    assert host.job.player.run is None  # nothing is planned of data that may have changed
    host.open("w2", tokens=5)
    host.make("w2")
    assert host.costs_of(0) == host.costs_of(1) == {20}
    assert all(trainer.is_at_end for trainer in host.trainers)


def test_a_run_that_goes_on_with_its_workers_keeps_them() -> None:
    host = Host()
    host.begin(*SHARERS)
    host.join("w", run=0)
    host.open("w")
    host.begin(*SHARERS)
    host.make("w")
    assert host.costs_of(0) == {4}
    assert b"w" in host.job.admission.workers


def test_what_ended_workers_had_is_made_by_others_at_once_and_nothing_is_blamed() -> None:
    host = Host()
    host.begin(*SHARERS)
    for name in ("w", "w2"):
        host.join(name, run=0)
        host.open(name)
    assert any(isinstance(message, DoPart) for message in host.told[b"w"])
    host.job.receive(peer(0), LeavePool(("w",)), (), host.now)
    host.turn()
    assert not host.job.pool.deaths
    host.make("w2")
    assert host.costs_of(1) == {4}


def test_a_trainer_that_the_job_does_not_know_ends_nobody() -> None:
    host = Host()
    host.begin(*SHARERS)
    host.join("w", run=0)
    host.job.receive(b"other", LeavePool(("w",)), (), host.now)
    assert b"w" in host.job.admission.workers
    assert b"other" not in {send.peer for send in host.job.turn(host.now)}


def test_a_process_that_opens_no_loader_is_not_waited_for_and_may_still_come() -> None:
    host = Host(sharers=1)
    host.begin(0)
    host.join("w", run=0)
    host.pass_time(5)
    host.open("w")
    host.make("w")
    assert host.costs_of(0) == {4}
    host.trainers.append(TrainerSession((0,), to_json(JOB), LAYOUT, 8, 1, 2, name="late"))
    host.begin(1)
    host.make("w")
    assert host.costs_of(1) == {4}


def test_a_trainer_that_is_silent_is_waited_for_and_one_that_has_ended_named() -> None:
    host = Host()
    host.begin(*SHARERS)
    host.join("w", run=0)
    host.open("w")
    host.pass_time(10 * UNREACHABLE_S)
    assert any(isinstance(message, BeatBack) for message in host.told[peer(1)])
    assert not any(trainer.failure for trainer in host.trainers)
    assert b"w" in host.job.admission.workers
    host.gone.add(peer(1))
    host.pass_time(UNREACHABLE_S + 4 * PROBE_S)
    assert host.trainers[0].failure.startswith(
        "process 1, which shares data-parallel rank 0 with others, has ended or cannot be reached"
    )


def test_one_that_has_ended_with_all_of_the_run_is_missed_by_nobody() -> None:
    host = Host()
    host.begin(*SHARERS)
    host.join("w", run=0)
    host.open("w")
    host.make("w")
    host.costs_of(1)
    host.gone.add(peer(1))
    host.pass_time(UNREACHABLE_S + 4 * PROBE_S)
    assert [*host.job.parties.peers] == [peer(0)]
    assert host.costs_of(0) == {4}
    assert host.trainers[0].is_at_end
    assert not host.trainers[0].failure
