"""Played jobs behind the balancer's real sockets: a worker and a trainer join, run and end."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from counterpoise.balancer.job.jobs import PlayedJobs
from counterpoise.balancer.job.messages import (
    JobOpened,
    JoinPool,
    OpenJob,
    PulledFrames,
    PullFrames,
    RelayedPiece,
    WorkersAt,
)
from counterpoise.balancer.parties.messages import JoinJob
from counterpoise.balancer.parties.trainer_session import TrainerSession
from counterpoise.balancer.pool.messages import DoPart, FreeParts
from counterpoise.balancer.pool.worker_session import PoolSession
from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.protocol.messages import JobList, ListJobs
from counterpoise.balancer.run.tasks import RunStart
from counterpoise.balancer.server.loop import new_credentials, serve
from counterpoise.balancer.transport.sockets import Link
from counterpoise.workers.planned.parts import do_part
from tests.balancer.job.cluster import START, Setting
from tests.balancer.job.test_job import delivered_here, facts_of

LIMIT_S = 60.0


@pytest.fixture(params=["ipc", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A balancer that serves, in a thread."""
    bound, is_over = [""], threading.Event()
    is_bound = threading.Event()

    def ready(address: str) -> None:
        bound[0] = address
        is_bound.set()

    given = f"ipc://{tmp_path}/balancer" if request.param == "ipc" else "tcp://127.0.0.1:*"
    jobs = PlayedJobs(1_800_000_000, lambda key: new_credentials(key, has_keys=False))
    thread = threading.Thread(target=serve, args=(jobs, given, ready, is_over.is_set))
    thread.start()
    assert is_bound.wait(LIMIT_S)
    yield bound[0]
    is_over.set()
    thread.join()


class Worker:
    """A worker that serves nowhere: all that it keeps is relayed."""

    def __init__(self, link: Link, setting: Setting) -> None:
        self.link, self.session, self.reader = link, PoolSession(), setting.reader()
        self.count = len(setting.lengths)
        self.kept: dict[int, Any] = {}
        self.serial = 0
        self.is_open = False

    def join(self) -> None:
        """Say hello, until the job comes."""
        if not self.is_open:
            self.link.send(JoinPool("w", 1, "inline", "", b"", 1 << 30))

    def turn(self) -> None:
        while (received := self.link.receive()) is not None:
            message = received[0]
            if isinstance(message, OpenJob):
                self.is_open = True
                opened = JobOpened(message.number, self.count, "print", (), False, True)
                self.link.send(opened)
            elif isinstance(message, PullFrames):
                frames = self.kept.get(message.serial, ())
                self.link.send(PulledFrames(message.serial, len(frames)), frames)
            elif isinstance(message, DoPart | FreeParts):
                self.session.take(message)
        while (part := self.session.next_part()) is not None:
            self.serial += 1
            answer, frames = do_part(self.reader, part, self.serial)
            self.kept[self.serial] = [bytes(memoryview(each).cast("B")) for each in frames]
            self.session.finish(answer)
        for said in self.session.take_messages():
            self.link.send(said)


def test_a_job_is_served_over_real_sockets(address: str) -> None:
    setting = next(s for n in range(99) if (s := Setting(n, faults=False)).ranks == s.sharers == 1)
    session = TrainerSession((0,), to_json(setting.job), setting.layout, 4, name="trainer")
    session.begin(RunStart(0, START))
    delivered = []
    with zmq.Context() as context:
        links = [Link(context, address, f"job|{name}".encode()) for name in ("w", "r")]
        worker, link = Worker(links[0], setting), links[1]
        beaten_at, until = 0.0, time.monotonic() + LIMIT_S
        while not (session.is_at_end or session.failure):
            assert time.monotonic() < until
            if time.monotonic() > beaten_at + 0.5:
                beaten_at = time.monotonic()
                worker.join()
                for said in session.beat():
                    link.send(said)
            worker.turn()
            while (received := link.receive()) is not None:
                message, frames = received
                if isinstance(message, RelayedPiece):
                    content = [frame.bytes for frame in frames]
                    place = message.rank, message.index, message.version, message.piece
                    session.note_pulled(*place, content)
                elif not isinstance(message, WorkersAt):
                    session.receive(message)  # type: ignore[arg-type]
            for pull in session.take_pulls():
                session.note_lost(pull, "it serves nowhere")
            while (batch := session.peek()) is not None:
                delivered.append(facts_of(batch.give.facts))
                session.release(batch)
            for said in session.take_messages(waits=True):
                link.send(said)
            link.poller.poll(1)
        for each in links:
            each.close(0)
    assert session.failure == ""
    expected, _ = delivered_here(setting)
    assert delivered == [facts for facts, _ in expected[0]]


def test_who_asks_for_jobs_is_told_of_one_that_begins() -> None:
    jobs = PlayedJobs(1, lambda _: (b"", b""))
    for peer, at in ((b"|early.1", 0.0), (b"|all.2", 9.0), (b"other|its.3", 9.0)):
        assert jobs.handle(peer, ListJobs(), now=at)[0].message == JobList(())
    hello = JoinJob(
        (0,), 0, 1, to_json(Setting(0).job), '{"kind":"samples","takes_empty":false}', 1
    )
    assert not jobs.handle(b"run|rank-0.1", hello, now=10.0)
    told = [(send.peer, send.message) for send in jobs.tick(10.0) if type(send.message) is JobList]
    assert told == [(b"|all.2", JobList(("run",))), (b"other|its.3", JobList(()))]
    assert not [send for send in jobs.tick(10.1) if type(send.message) is JobList]
