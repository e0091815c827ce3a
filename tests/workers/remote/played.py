"""A balancer of one job behind a real ROUTER, with a trainer in the same thread, for a worker.

It is PlayedJob, and as much of a server as one worker needs. The trainer pulls over a real socket.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from counterpoise.balancer.job.job import PlayedJob
from counterpoise.balancer.job.messages import (
    JobNotOpened,
    JobOpened,
    JoinPool,
    LeavePool,
    OpenJob,
    PulledFrames,
    PullFrames,
    SendFrames,
    SentFrames,
)
from counterpoise.balancer.parties.incoming import PieceToPull
from counterpoise.balancer.parties.trainer_session import TrainerSession
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.pool.messages import PoolBeat
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import Bye, JobList, ListJobs, UnknownPeer
from counterpoise.balancer.protocol.parts import EpochPosition
from counterpoise.balancer.protocol.trace_messages import TraceSpans
from counterpoise.balancer.run.arrivals import RunStart
from counterpoise.balancer.transport.naming import peer_name
from counterpoise.balancer.transport.sockets import (
    connect,
    decode_from,
    listen,
    receive,
    receive_frames,
    send,
)
from counterpoise.workers.codec.batches import decode_batch
from counterpoise.workers.daemon.jobs import JobsWorker, ServedBalancer
from counterpoise.workers.remote.frame_store import FrameStore
from counterpoise.workers.remote.job_worker import (
    RemoteWorker,
    WorkerSetup,
    open_remote_worker,
)
from counterpoise.workers.serving.server import PullServer

LIMIT_S, ROOM = 60.0, 1 << 20
TURN_MS = 20
NAME, TRAINER, SECRET = "run-7", b"run-7|trainer", b"the trainers' password"
STACKED = {"kind": "stacked", "takes_empty": False}
START = RunStart(0, EpochPosition(0, 0, 0, 0, ""))


def job_of(samples_per_step: int = 6, **more: Any) -> JobSpec:
    """Return a job of one rank, with steps of so many samples in microbatches of 3."""
    plan = PlanConfig(
        ranks=1, samples_per_step=samples_per_step, accumulate=samples_per_step // 3,
        resources=("tokens",), budgets=(None,), grouping="balanced", seed=1,
    )  # fmt: skip
    return JobSpec(plan, source={"kind": "told"}, **more)


class PlayedBalancer:
    """The balancer; `restart()` makes another at the same address. said: all that workers said."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        job: JobSpec,
        layout: dict[str, Any] | None = None,
    ) -> None:
        self.router = listen(context, "tcp://127.0.0.1:*")
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.context, self.spec = context, job
        self.layout = json.dumps(layout or STACKED)
        self.generation = 0
        self.said: list[tuple[bytes, Any]] = []
        self.relays = False
        self.batches: list[Any] = []
        self.trainer = TrainerSession((0,), to_json(job), self.layout, 4, 0, 1, name="trainer")
        self._pulls: dict[bytes, tuple[Any, PieceToPull]] = {}
        self._relayed: dict[int, PieceToPull] = {}
        self._beat_at = 0.0
        self.restart()

    def restart(self) -> None:
        """Be a balancer that knows nobody."""
        self.generation += 1
        collates = json.loads(self.layout)["kind"] != "samples"
        self.job = PlayedJob(to_json(self.spec), self.layout, collates, False, self.generation)
        self.joined: dict[bytes, JoinPool] = {}

    def close(self) -> None:
        for socket, _ in self._pulls.values():
            socket.close(linger=0)
        self.router.close(linger=0)

    def run(self, until: Callable[[], bool]) -> None:
        """Turn until something is so."""
        limit = time.monotonic() + LIMIT_S
        while not until():
            assert time.monotonic() < limit, self.said[-20:]
            self.turn()

    def deliver(self, start: RunStart = START) -> list[Any]:
        """Play a run; return its batches."""
        self.batches.clear()
        self.trainer.begin(start)
        self.run(lambda: self.trainer.is_at_end or bool(self.trainer.failure))
        assert not self.trainer.failure
        return [*self.batches]

    def of_kind(self, kind: type) -> list[Any]:
        return [message for _, message in self.said if isinstance(message, kind)]

    # --- a turn

    def turn(self) -> None:
        self.router.poll(TURN_MS)
        while (frames := receive_frames(self.router)) is not None:
            peer, _, content = decode_from(frames)
            assert isinstance(content, list), content
            for message, payloads in content:
                self._take(peer, message, payloads)
        now = time.monotonic()
        if now > self._beat_at + 1.0:
            self._beat_at = now
            self._from_trainer(self.trainer.beat())
        if (batch := self.trainer.peek()) is not None:
            self.batches.append(batch.frames)
            self.trainer.release(batch)
        self._from_trainer(self.trainer.take_messages(waits=True))
        for peer, message in self.job.turn(now):
            self.trainer.receive(message) if peer == TRAINER else self.send(peer, message)
        for pull in self.trainer.take_pulls():
            self._pull(pull)
        self._read_pulled()

    def send(self, peer: bytes, message: Any) -> None:
        with contextlib.suppress(zmq.ZMQError):  # it has gone
            send(self.router, message, to=peer)

    def _from_trainer(self, messages: Any) -> None:
        for message in messages:
            self.job.from_trainer(TRAINER, message, time.monotonic())

    def _take(self, sender: bytes, message: Any, frames: list[zmq.Frame]) -> None:
        peer = sender.replace(b"heartbeat.", b"")
        self.said.append((sender, message))
        match message:
            case ListJobs():
                self.send(sender, JobList((NAME,)))
            case JoinPool():
                self.job.pool.lose(peer, time.monotonic())
                self.joined[peer] = message
                token = self.job._tokens.setdefault(peer, self.job._first_token + 1)
                opening = self.job.opening
                told = OpenJob(1, opening.job, opening.layout, token, b"", SECRET)
                self.send(sender, told)
            case _ if peer not in self.joined:
                self.send(sender, UnknownPeer())
            case JobOpened():
                assert self.job.open_worker(peer, message, time.monotonic()) == ""
            case SentFrames(serial, _):
                self._arrive(self._relayed.pop(serial), frames)
            case JobNotOpened() | TraceSpans():
                pass
            case LeavePool():
                del self.joined[peer]
                self.job.pool.lose(peer, time.monotonic())
            case _:
                self.job.from_worker(peer, message, time.monotonic())
                is_leaving = isinstance(message, PoolBeat) and message.leaving
                if is_leaving and self.job.pool.may_go(peer):
                    self.send(peer, Bye())

    # --- the trainer's pulls

    def _pull(self, pull: PieceToPull) -> None:
        token = pull.piece.token
        worker = next((name for name, of in self.job._tokens.items() if of == token), b"")
        if worker not in self.joined:
            self.trainer.note_lost(pull, "its worker has gone")
            return
        if self.relays:
            self._relayed[pull.piece.serial] = pull
            self.send(worker, SendFrames(pull.piece.serial))
            return
        name = peer_name(NAME, "pull")
        socket = connect(self.context, self.joined[worker].address, name, password=SECRET)
        send(socket, PullFrames(1, token, pull.piece.serial, ()))
        self._pulls[name] = socket, pull

    def _read_pulled(self) -> None:
        for name, (socket, pull) in [*self._pulls.items()]:
            if (received := receive(socket)) is not None:
                assert isinstance(received[0], PulledFrames)
                self._arrive(pull, received[1])
                socket.close(linger=0)
                del self._pulls[name]

    def _arrive(self, pull: PieceToPull, frames: list[zmq.Frame]) -> None:
        if not frames:
            self.trainer.note_lost(pull, "it is gone", is_rubbish=True)
            return
        batch = decode_batch([frame.bytes for frame in frames])
        self.trainer.note_pulled(pull.rank, pull.index, pull.version, pull.number, batch)


@contextlib.contextmanager
def working(
    balancer: PlayedBalancer, source: Any, drain_s: float = 0.0, serves: bool = True, **more: Any
) -> Iterator["WorkerThread"]:
    """Have a worker work in a thread, until the block ends or it is told to."""
    thread = WorkerThread(balancer, source, drain_s, serves, more)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop.set()
        balancer.run(lambda: not thread.is_alive())


class WorkerThread(threading.Thread):
    """JobsWorker in a thread; workers: those that it has opened; why: what it has returned."""

    def __init__(
        self, balancer: PlayedBalancer, source: Any, drain_s: float, serves: bool, more: Any
    ) -> None:
        super().__init__(daemon=True)
        self.balancer, self.source, self.more = balancer, source, more
        self.drain_s, self.serves = drain_s, serves
        self.stop = threading.Event()
        self.workers: list[RemoteWorker] = []
        self.opened: list[Any] = []
        self.why: str | None = None

    def run(self) -> None:
        worker = JobsWorker([ServedBalancer(self.balancer.endpoint)], self.open, ROOM)
        self.why = worker.work(self.stop.is_set, drain_s=self.drain_s)

    @contextlib.contextmanager
    def open(self, _balancer: ServedBalancer, endpoint: str, job: str) -> Iterator[RemoteWorker]:
        server = address = None
        if self.serves:
            server = PullServer("tcp://127.0.0.1:*", ROOM, None, FrameStore())
            address = server.endpoint
        hello = JoinPool(
            "host/1", len(self.workers), "host", 1, "", "as tests have it", address or "", b"", 0
        )
        setup = WorkerSetup(peer_name(job, "worker"), hello, self.open_source, server, **self.more)
        try:
            with open_remote_worker(endpoint, setup) as worker:
                self.workers.append(worker)
                yield worker
        finally:
            if server is not None:
                server.close()

    def open_source(self, described: Any) -> Any:
        self.opened.append(described)
        if isinstance(self.source, Exception):
            raise self.source
        return self.source
