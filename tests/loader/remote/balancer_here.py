"""A balancer and its workers in this process: a played job behind a real socket, in a thread.

A worker is a PoolSession over a PlannedReader, and does its parts at once; what it keeps a socket
of its own serves. Lost pieces are relayed as a balancer's server does.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from counterpoise.balancer.job.job import PlayedJob
from counterpoise.balancer.job.messages import (
    JobOpened,
    PulledFrames,
    PullFrames,
    RelayedPiece,
    WorkersAt,
)
from counterpoise.balancer.parties.messages import FROM_TRAINER, GiveBatch, JoinJob, LostPieces
from counterpoise.balancer.pool.worker_session import PoolSession
from counterpoise.balancer.protocol.messages import UnknownPeer
from counterpoise.balancer.protocol.parts import PayloadServer
from counterpoise.balancer.transport.sockets import decode_from, listen, receive_frames, send
from counterpoise.workers.collate.described import layout_of
from counterpoise.workers.collate.labels import count_label_tokens_of
from counterpoise.workers.planned.parts import do_part
from counterpoise.workers.planned.reader import PlannedReader
from counterpoise.workers.sources.interface import as_source

# What a worker sends in place of the frames that it keeps under a serial.
Lie = Callable[[int, list[Any]], list[Any]]


def _tell_truth(_: int, frames: list[Any]) -> list[Any]:
    return frames


class WorkerHere:
    """A worker of a job. pulls: what was asked of it: (serial, frames)."""

    def __init__(self, name: bytes, job: PlayedJob, data: Any, serves: bool, lie: Lie) -> None:
        spec, layout = job.spec, json.loads(job.opening.layout)
        self.name, self.lie = name, lie
        source = as_source(data)
        collate = layout_of(layout)
        self.session = PoolSession()
        self.reader = PlannedReader(
            data, source, spec.resources, spec.plan.seed, collate or list,
            spec.on_error == "skip", layout["takes_empty"], False, spec.shift_labels,
            count_label_tokens_of if spec.counts_batches and collate else None,
        )  # fmt: skip
        self.told = JobOpened(
            1, len(source), "print", (), bool(getattr(source, "decode_first", False)),
            bool(getattr(source, "names_samples", True)),
        )  # fmt: skip
        self.kept: dict[int, list[bytes]] = {}
        self.pulls: list[tuple[int, tuple[int, ...]]] = []
        self._last = 0
        self._context = zmq.Context()
        self.socket = listen(self._context, "tcp://127.0.0.1:*") if serves else None
        self.address = (
            self.socket.getsockopt_string(zmq.LAST_ENDPOINT) if self.socket is not None else ""
        )

    def work(self) -> list[Any]:
        """Do all parts, answer pulls; return what the balancer is told."""
        while (part := self.session.next_part()) is not None:
            self._last += 1
            answer, frames = do_part(self.reader, part, self._last)
            if frames:
                self.kept[self._last] = [bytes(memoryview(each).cast("B")) for each in frames]
            self.session.finish(answer)
        while self.session.freed:
            self.kept.pop(self.session.freed.pop(), None)
        while self.socket is not None and (asked_in := receive_frames(self.socket)) is not None:
            peer, _, content = decode_from(asked_in)
            assert isinstance(content, list)
            for message, _ in content:
                assert isinstance(message, PullFrames)
                self.pulls.append((message.serial, message.frames))
                kept = self.lie(message.serial, self.kept.get(message.serial, []))
                asked = [kept[n] for n in message.frames] if message.frames and kept else kept
                send(self.socket, PulledFrames(message.number, len(asked)), asked, to=peer)
        return self.session.take_messages()

    def close(self) -> None:
        self._context.destroy(linger=0)


class BalancerHere:
    """A balancer of one job at `address`, and its workers; a context.

    data: what workers read. relayed: how many pieces were sent on.
    """

    def __init__(
        self, data: Any, workers: int = 2, serves: Sequence[bool] = (), lies: Sequence[Lie] = ()
    ) -> None:
        self.data = data
        self._serves = serves or [True] * workers
        self._lies = lies or [_tell_truth] * workers
        self._count = workers
        self._context = zmq.Context()
        self._router = listen(self._context, "tcp://127.0.0.1:*")
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.job: PlayedJob | None = None
        self.workers: dict[bytes, WorkerHere] = {}
        self.relayed = 0
        self.received: list[Any] = []
        self.error: BaseException | None = None
        self._told: dict[bytes, set[int]] = {}
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

    def _take_from(self, peer: bytes, message: Any) -> None:
        assert isinstance(message, FROM_TRAINER), message
        self.received.append(message)
        if self.job is None:
            if not isinstance(message, JoinJob):
                self._send(peer, UnknownPeer())
                return
            self._begin(message)
        assert self.job is not None
        if isinstance(message, LostPieces) and not message.is_rubbish:
            self._relay(peer, message)
        else:
            self.job.from_trainer(peer, message, time.monotonic())

    def _turn(self) -> None:
        sockets = [worker.socket for worker in self.workers.values() if worker.socket is not None]
        zmq.zmq_poll([(each, zmq.POLLIN) for each in (self._router, *sockets)], 5)
        while (frames := receive_frames(self._router)) is not None:
            peer, _, content = decode_from(frames)
            assert isinstance(content, list), content
            for message, _ in content:
                self._take_from(peer, message)
        if self.job is None:
            return
        for worker in self.workers.values():
            for answer in worker.work():
                self.job.from_worker(worker.name, answer, time.monotonic())
            self.job.from_worker(worker.name, worker.session.beat(), time.monotonic())
        for peer, message in self.job.turn(time.monotonic()):
            if peer in self.workers:
                self.workers[peer].session.take(message)
            else:
                self._to_trainer(peer, message)

    def _begin(self, hello: JoinJob) -> None:
        layout = json.loads(hello.layout)
        collates = layout["kind"] != "samples"
        self.job = PlayedJob(hello.job, hello.layout, collates, layout["takes_empty"], 1)
        for number in range(self._count):
            name = f"worker {number}".encode()
            worker = WorkerHere(name, self.job, self.data, self._serves[number], self._lies[number])
            self.workers[name] = worker
            assert self.job.open_worker(name, worker.told, time.monotonic()) == ""

    def _to_trainer(self, peer: bytes, message: Any) -> None:
        assert self.job is not None
        if isinstance(message, GiveBatch):
            told = self._told.setdefault(peer, set())
            tokens = {piece.token for piece in message.pieces} - told
            servers = tuple(
                PayloadServer(token, self.workers[name].address, b"", b"", b"")
                for name, token in self.job._tokens.items()
                if token in tokens
            )
            if servers:
                self._send(peer, WorkersAt(servers))
                told |= tokens
        self._send(peer, message)

    def _relay(self, peer: bytes, lost: LostPieces) -> None:
        assert self.job is not None
        queued = self.job.parties._queues[lost.rank].find(lost.index)
        if queued is None or queued.ticket is None:
            return
        for number in lost.pieces:
            piece = queued.ticket.pieces[number]
            worker = self.workers[piece.worker or b""]
            kept = worker.lie(piece.serial, worker.kept[piece.serial])
            self.relayed += 1
            message = RelayedPiece(lost.run, lost.rank, lost.index, lost.version, number, len(kept))
            self._send(peer, message, kept)

    def _send(self, peer: bytes, message: Any, frames: Sequence[Any] = ()) -> None:
        with contextlib.suppress(zmq.ZMQError):  # it is gone
            send(self._router, message, frames, to=peer)
