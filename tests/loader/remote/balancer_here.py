"""A balancer and its workers in this process: its jobs behind a real socket, in a thread.

A worker is a PoolSession over a PlannedReader, and does its parts at once; what it keeps a socket
of its own serves.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from counterpoise.balancer.job.jobs import PlayedJobs
from counterpoise.balancer.job.messages import (
    JobOpened,
    JoinPool,
    OpenJob,
    PulledFrames,
    PullFrames,
    RelayedPiece,
)
from counterpoise.balancer.parties.messages import FROM_TRAINER, JoinJob
from counterpoise.balancer.pool.messages import TO_WORKER
from counterpoise.balancer.pool.worker_session import PoolSession
from counterpoise.balancer.protocol.job_spec import from_json
from counterpoise.balancer.protocol.messages import PeerRejected, UnknownPeer
from counterpoise.balancer.transport.naming import DEFAULT_JOB
from counterpoise.balancer.transport.sockets import (
    NO_NAME,
    decode_routed,
    listen,
    receive_frames,
    send,
)
from counterpoise.workers.collate.described import read_layout
from counterpoise.workers.collate.labels import count_batch_label_tokens
from counterpoise.workers.planned.parts import do_part
from counterpoise.workers.planned.reader import PlannedReader
from counterpoise.workers.sources.plain import as_source

# A process has one set of global generators, and workers and trainers are processes of their own.
DRAWS = threading.RLock()
# What a worker sends in place of the frames that it keeps under a serial.
Lie = Callable[[int, list[Any]], list[Any]]


def _tell_truth(_: int, frames: list[Any]) -> list[Any]:
    return frames


class WorkerHere:
    """A worker of a job. pulls: what was asked of it: (serial, frames).

    address: where it says that it serves, None for where it does. is_silent: it answers no pull.
    """

    def __init__(
        self, number: int, data: Any, address: str | None, lie: Lie, is_silent: bool
    ) -> None:
        self.name, self._data, self.lie = f"{DEFAULT_JOB}|worker-{number}".encode(), data, lie
        self.session = PoolSession()
        self.reader: PlannedReader | None = None
        self.kept: dict[int, list[bytes]] = {}
        self.pulls: list[tuple[int, tuple[int, ...]]] = []
        self._last = 0
        self._context = zmq.Context()
        self.socket, self.is_silent = listen(self._context, "tcp://127.0.0.1:*"), is_silent
        own = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.hello = JoinPool(
            f"worker {number}", 1, "direct", own if address is None else address, b"", 1 << 30
        )  # fmt: skip

    def take(self, message: Any) -> list[tuple[Any, list[Any]]]:
        """Take a message of the balancer; return answers, and the frames behind them."""
        if isinstance(message, OpenJob):
            return [(self._open(message), [])]
        if isinstance(message, PullFrames):
            kept = self.lie(message.serial, self.kept.get(message.serial, []))
            return [(PulledFrames(message.serial, len(kept)), kept)]
        if isinstance(message, PeerRejected | UnknownPeer):
            self.reader = None
        else:
            assert isinstance(message, TO_WORKER), message
            self.session.take(message)
        return []

    def _open(self, message: OpenJob) -> JobOpened:
        spec, layout, data = from_json(message.job), json.loads(message.layout), self._data
        source, collate = as_source(data), read_layout(layout)
        self.reader = PlannedReader(
            data, source, spec.resources, spec.plan.seed, collate or list,
            spec.on_error == "skip", layout["takes_empty"], False, spec.shift_labels,
            count_batch_label_tokens if spec.counts_batches and collate else None,
        )  # fmt: skip
        loads_first = source.decode_first
        is_named = source.names_samples
        return JobOpened(message.number, len(source), "print", (), loads_first, is_named)

    def work(self) -> list[Any]:
        """Do all parts, answer pulls; return what the balancer is told."""
        while self.reader is not None and (part := self.session.next_part()) is not None:
            self._last += 1
            with DRAWS:
                answer, frames = do_part(self.reader, part, self._last)
            if frames:
                self.kept[self._last] = [bytes(memoryview(each).cast("B")) for each in frames]
            self.session.finish(answer)
        while self.session.freed:
            self.kept.pop(self.session.freed.pop(), None)
        while (asked_in := receive_frames(self.socket)) is not None and not self.is_silent:
            peer, _, content = decode_routed(asked_in)
            assert isinstance(content, list)
            for message, _ in content:
                assert isinstance(message, PullFrames)
                self.pulls.append((message.serial, message.frames))
                kept = self.lie(message.serial, self.kept.get(message.serial, []))
                asked = [kept[n] for n in message.frames] if message.frames and kept else kept
                with contextlib.suppress(zmq.ZMQError):  # it is gone
                    send(self.socket, PulledFrames(message.number, len(asked)), asked, to=peer)
        return self.session.take_messages()

    def close(self) -> None:
        self._context.destroy(linger=0)


class BalancerHere:
    """A balancer at `address`, and its workers, which come with the first trainer; a context.

    data: what workers read. relayed: how many pieces were sent on. received: what trainers said.
    notices: what trainers are to be sent.
    """

    def __init__(
        self, data: Any, workers: int = 2, serves: Sequence[bool] = (), lies: Sequence[Lie] = (),
        addresses: Sequence[str | None] = (), is_silent: bool = False,
    ) -> None:  # fmt: skip
        self.data = data
        addresses = addresses or [None if each else "" for each in serves or [True] * workers]
        lies = lies or [_tell_truth] * workers
        made = (WorkerHere(n, data, addresses[n], lies[n], is_silent) for n in range(workers))
        self.workers = {worker.name: worker for worker in made}
        self._context = zmq.Context()
        self._router = listen(self._context, "tcp://127.0.0.1:*")
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.jobs = PlayedJobs(1, lambda _: (b"", b""))
        self.relayed = 0
        self.received: list[Any] = []
        self.notices: list[Any] = []
        self.error: BaseException | None = None
        self._trainers: dict[bytes, None] = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "BalancerHere":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(20)
        for worker in self.workers.values():
            worker.close()
        self._context.destroy(linger=0)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                self._turn()
        except BaseException as error:
            self.error = error
            raise

    def _turn(self) -> None:
        sockets = [worker.socket for worker in self.workers.values()]
        zmq.zmq_poll([(each, zmq.POLLIN) for each in (self._router, *sockets)], 5)
        while (frames := receive_frames(self._router)) is not None:
            peer, _, content = decode_routed(frames)
            assert isinstance(content, list), content
            if peer.startswith(NO_NAME):
                continue  # what is left of a former connection: a server drops it, too
            for message, _ in content:
                assert isinstance(message, FROM_TRAINER), message
                self.received.append(message)
                if isinstance(message, JoinJob):
                    self._trainers[peer] = None
                self._handle(peer, message)
                if isinstance(message, JoinJob) and not self._is_known(next(iter(self.workers))):
                    for worker in self.workers.values():
                        self._handle(worker.name, worker.hello)
        while self.notices:
            notice = self.notices.pop(0)
            for peer in self._trainers:
                self._send(peer, notice)
        for worker in self.workers.values():
            if worker.reader is not None:
                for answer in [*worker.work(), worker.session.beat()]:
                    self._handle(worker.name, answer)
        self._do(self.jobs.tick(time.monotonic()))

    def _is_known(self, peer: bytes) -> bool:
        job = self.jobs.jobs.get(DEFAULT_JOB)
        return job is not None and peer in job.admission.workers

    def _handle(self, peer: bytes, message: Any, frames: Sequence[Any] = ()) -> None:
        self._do(self.jobs.handle(peer, message, frames, time.monotonic()))

    def _do(self, sends: Sequence[Any]) -> None:
        for sent in sends:
            if (worker := self.workers.get(sent.peer)) is not None:
                for answer, frames in worker.take(sent.message):
                    self._handle(worker.name, answer, frames)
            else:
                self.relayed += isinstance(sent.message, RelayedPiece)
                self._send(sent.peer, sent.message, sent.payloads)

    def _send(self, peer: bytes, message: Any, frames: Sequence[Any] = ()) -> None:
        with contextlib.suppress(zmq.ZMQError):  # it is gone
            send(self._router, message, frames, to=peer)
