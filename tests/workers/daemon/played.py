"""A balancer behind a real ROUTER, with a trainer in the same thread, for workers.

The trainer is its session, and pulls over real sockets.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import zmq

from counterpoise.balancer.job.effects import Send
from counterpoise.balancer.job.jobs import PlayedJobs
from counterpoise.balancer.job.messages import (
    JoinPool,
    PulledFrames,
    PullFrames,
    RelayedPiece,
    WorkersAt,
)
from counterpoise.balancer.parties.incoming import PieceToPull
from counterpoise.balancer.parties.trainer_session import TrainerSession
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.parts import EpochPosition, PayloadServer
from counterpoise.balancer.run.tasks import RunStart
from counterpoise.balancer.transport.naming import peer_name
from counterpoise.balancer.transport.sockets import (
    connect,
    decode_routed,
    listen,
    receive,
    receive_frames,
    send,
)
from counterpoise.workers.codec.batches import decode_batch
from counterpoise.workers.daemon.job_worker import RemoteWorker, WorkerSetup, open_remote_worker
from counterpoise.workers.daemon.jobs import JobsWorker, ServedBalancer
from counterpoise.workers.serving.frame_store import FrameStore
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
        self.context = context
        layout_json = json.dumps(layout or STACKED)
        self.trainer = TrainerSession((0,), to_json(job), layout_json, 4, 0, 1, name="trainer")
        self.generation = 0
        self.said: list[tuple[bytes, Any]] = []
        self.relays = False
        self.batches: list[Any] = []
        self._pulls: dict[bytes, tuple[Any, PieceToPull]] = {}
        self._beat_at = 0.0
        self.restart()

    def restart(self) -> None:
        """Be a balancer that knows nobody."""
        self.generation += 1
        self.jobs = PlayedJobs(self.generation, lambda _: (b"", SECRET))
        self.servers: dict[int, PayloadServer] = {}

    @property
    def workers(self) -> list[bytes]:
        """The workers that have joined, by their peers' names."""
        return [peer for job in self.jobs.jobs.values() for peer in job.admission.workers]

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
        while (received := receive_frames(self.router)) is not None:
            peer, _, content = decode_routed(received)
            assert isinstance(content, list), content
            for message, payloads in content:
                self.said.append((peer, message))
                self._handle(peer, message, payloads)
        now = time.monotonic()
        if now > self._beat_at + 1.0:
            self._beat_at = now
            self._from_trainer(self.trainer.beat())
        if (batch := self.trainer.peek()) is not None:
            self.batches.append(batch.frames)
            self.trainer.release(batch)
        self._from_trainer(self.trainer.take_messages(waits=True))
        self._send(self.jobs.tick(now))
        for pull in self.trainer.take_pulls():
            self._pull(pull)
        self._read_pulled()

    def _handle(self, peer: bytes, message: Any, frames: Sequence[Any] = ()) -> None:
        self._send(self.jobs.handle(peer, message, frames, time.monotonic()))

    def _from_trainer(self, messages: Any) -> None:
        for message in messages:
            self._handle(TRAINER, message)

    def _send(self, sends: Sequence[Send]) -> None:
        for each in sends:
            if each.peer == TRAINER:
                self._to_trainer(each.message, each.payloads)
            else:
                self.send(each.peer, each.message)

    def send(self, peer: bytes, message: Any) -> None:
        with contextlib.suppress(zmq.ZMQError):  # it has gone
            send(self.router, message, to=peer)

    # --- the trainer

    def _to_trainer(self, message: Any, frames: Sequence[Any]) -> None:
        match message:
            case WorkersAt(servers):
                self.servers |= {server.token: server for server in servers}
            case RelayedPiece(_, rank, index, version, piece, _):
                self._arrive((rank, index, version, piece), frames)
            case _:
                self.trainer.receive(message)

    def _pull(self, pull: PieceToPull) -> None:
        server = self.servers.get(pull.piece.token)
        if server is None or not server.address or self.relays:
            self.trainer.note_lost(pull, "it cannot be pulled")
            return
        name = peer_name(NAME, "pull")
        socket = connect(self.context, server.address, name, password=server.secret)
        send(socket, PullFrames(1, server.token, pull.piece.serial, ()))
        self._pulls[name] = socket, pull

    def _read_pulled(self) -> None:
        for name, (socket, pull) in [*self._pulls.items()]:
            if (received := receive(socket)) is not None:
                assert isinstance(received[0], PulledFrames)
                if received[1]:
                    place = pull.rank, pull.index, pull.version, pull.number
                    self._arrive(place, received[1])
                else:
                    self.trainer.note_lost(pull, "it is gone")
                socket.close(linger=0)
                del self._pulls[name]

    def _arrive(self, place: tuple[int, int, int, int], frames: Sequence[Any]) -> None:
        self.trainer.note_pulled(*place, decode_batch([frame.bytes for frame in frames]))


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
            server = PullServer("tcp://127.0.0.1:*", None, FrameStore())
            address = server.endpoint
        hello = JoinPool("host/1", len(self.workers), "as tests have it", address or "", b"", 0)
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
