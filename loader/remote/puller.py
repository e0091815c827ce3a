"""A trainer's pulls: the pieces of its microbatches, from the workers that keep them.

A worker that cannot be connected to, or that answers nothing several times in a row, is *out of
reach*: nothing more is asked of it, and the balancer, which is told so of each of its pieces, sends
them on. Every wait has an end. The connections live in the context of the rank's sockets, and close
with it while a process is forked; there is no thread of Python's.
"""

import logging
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from ...balancer.job.messages import PulledFrames, PullFrames
from ...balancer.parties.incoming import PieceToPull
from ...balancer.protocol.parts import PayloadServer
from ...balancer.transport.keys import KeyPair, PeerKeys
from ...balancer.transport.sockets import connect, read_event, receive, send_together
from ...balancer.transport.wire import WireError
from ...workers.codec.contents import CodecError
from .batch_reader import BatchReader
from .inbox import Inbox
from .rank_sockets import RankSockets

logger = logging.getLogger(__name__)

# A worker that cannot be connected to within this time is out of reach.
CONNECT_S = 5.0
# An answer comes within this time, and the time that its bytes take at this rate.
ANSWER_S, SLOW_BYTES_PER_S = 10.0, 4e6
# A worker that has answered nothing so many times, one after the other, is out of reach.
MOST_SILENCES = 3
# A connection over which nothing was asked for so long is closed: each costs descriptors.
UNUSED_S = 60.0
# What a connection's monitor tells: it is made, it has ended, or it could not be made, and why.
_MADE = zmq.EVENT_HANDSHAKE_SUCCEEDED
_REASONS: dict[int, str] = {
    zmq.EVENT_DISCONNECTED: "the connection has ended",
    zmq.EVENT_CONNECT_RETRIED: "no process listens there, or the way is closed",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the worker does not let this rank in",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "what listens there is no worker of this job",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "what listens there ends the connection",
}
_EVENTS = sum(_REASONS) | _MADE


@dataclass(slots=True, eq=False)
class _Pull:
    """A piece that was asked for; numbers: of the frames that were, frames: all that are here."""

    piece: PieceToPull
    fields: Container[str] | None
    numbers: Sequence[int]
    frames: list[Any]

    def take(self, frames: Sequence[Any], reader: BatchReader) -> Sequence[int]:
        """Keep frames that have come; return the numbers of those that are to be asked for next.

        Raises CodecError where they are not what was announced.
        """
        announced, sizes = self.piece.piece.frames, [len(frame) for frame in frames]
        if sizes != [announced[number] for number in self.numbers]:
            raise CodecError(f"it sends {sizes!s:.80} bytes for what was announced")
        is_head = self.fields is not None and self.numbers[0] == 0
        for number, frame in zip(self.numbers, frames, strict=True):
            self.frames[number] = frame
        return reader.list_frames(frames[0], announced, self.fields)[1:] if is_head else ()


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker that is pulled from; since: when it last answered, or was to begin to.

    asking: what it is to be asked for next.
    """

    server: PayloadServer
    socket: "zmq.Socket[bytes]"
    monitor: "zmq.Socket[bytes]"
    poller: zmq.Poller
    since: float
    is_connected: bool = False
    pulls: dict[int, _Pull] = field(default_factory=dict)
    asking: list[PullFrames] = field(default_factory=list)


class PiecePuller:
    """The connections to workers, by token."""

    def __init__(self, sockets: RankSockets, inbox: Inbox) -> None:
        self._sockets, self._inbox = sockets, inbox
        self._workers: dict[int, _Worker] = {}
        # How often workers that were connected to have not answered; why others are out of reach.
        self._silences: dict[int, int] = {}
        self._unreachable: dict[int, str] = {}
        self._last = 0
        sockets.before_closing = self.close

    def describe_wait(self) -> str:
        """Return in a few words what is on its way here, "" if nothing is."""
        waiting = sum(len(worker.pulls) for worker in self._workers.values())
        return f"answers of workers to {waiting} pulls" if waiting else ""

    def turn(self) -> None:
        """Take answers, and ask for what was announced."""
        for worker in list(self._workers.values()):
            self._receive(worker)
        for worker in list(self._workers.values()):
            self._expire(worker, time.monotonic())
        for piece in self._inbox.session.take_pulls():
            self._begin(piece)
        for worker in [*self._workers.values()]:
            self._send(worker)

    def close(self) -> None:
        """Close all connections; what is not here is asked for again over new ones."""
        for worker in list(self._workers.values()):
            self._close(worker)
        self._inbox.session.pull_again()

    # --- asking

    def _begin(self, piece: PieceToPull) -> None:
        """Ask for a piece, or say why that cannot be."""
        session, token = self._inbox.session, piece.piece.token
        lacking = session.lacks(piece.rank, piece.index, piece.version)
        server = self._inbox.servers.get(token)
        if lacking is None:
            return
        if server is None or token in self._unreachable:
            session.note_lost(piece, self._unreachable.get(token, ""))  # "": tell where it is
            return
        fields = self._inbox.reader.needed_fields(lacking.give, self._inbox.epoch)
        count = len(piece.piece.frames)
        pull = _Pull(piece, fields, range(count) if fields is None else (0,), [None] * count)
        try:
            worker = self._workers.get(token) or self._connect(server)
        except (ValueError, zmq.ZMQError) as error:
            why = f"no address to connect to: {error!s:.80}" if server.address else "serves nowhere"
            self._give_up(server, why, [piece])
        else:
            self._ask(worker, pull)

    def _ask(self, worker: _Worker, pull: _Pull) -> None:
        if not worker.pulls:
            worker.since = time.monotonic()
        self._last += 1
        worker.pulls[self._last] = pull
        numbers = () if len(pull.numbers) == len(pull.frames) else tuple(pull.numbers)
        asked = PullFrames(self._last, worker.server.token, pull.piece.piece.serial, numbers)
        worker.asking.append(asked)

    def _send(self, worker: _Worker) -> None:
        """Send a worker all that it is asked for, as one message."""
        if worker.asking and not worker.socket.closed:
            asking, worker.asking = worker.asking, []
            send_together(worker.socket, asking)

    def _connect(self, server: PayloadServer) -> _Worker:
        keys = None
        if server.key:
            keys = PeerKeys(KeyPair("trainer", server.public, server.secret), server.key)
        socket = connect(
            self._sockets.context(), server.address, self._sockets.name, keys,
            monitored=_EVENTS, password=b"" if keys else server.secret,
        )  # fmt: skip
        monitor, poller = socket.get_monitor_socket(), self._sockets.link().poller
        worker = _Worker(server, socket, monitor, poller, time.monotonic())
        self._workers[server.token] = worker
        for watched in (socket, monitor):
            poller.register(watched, zmq.POLLIN)
        return worker

    # --- answers

    def _receive(self, worker: _Worker) -> None:
        """Take a worker's answers, and then the events of its connection."""
        events = list[int]()
        while worker.monitor.poll(0):
            events.append(read_event(worker.monitor))
        try:  # now: what came before a connection ended is here
            while (received := receive(worker.socket)) is not None:
                message, frames = received
                if isinstance(message, PulledFrames) and message.number in worker.pulls:
                    self._take(worker, worker.pulls.pop(message.number), frames)
        except WireError as error:
            self._fail(worker, f"it does not speak our protocol: {error!s:.80}")
            return
        for event in events:
            if event != _MADE:
                self._fail(worker, _REASONS[event])
                return
            worker.is_connected = True
            self._silences.setdefault(worker.server.token, 0)

    def _take(self, worker: _Worker, pull: _Pull, frames: list[zmq.Frame]) -> None:
        worker.is_connected, worker.since = True, time.monotonic()
        self._silences[worker.server.token] = 0
        piece, session = pull.piece, self._inbox.session
        lacking = session.lacks(piece.rank, piece.index, piece.version)
        if lacking is None:
            return
        if not frames:  # it begins anew, or lies: the balancer finds out which, and has it sent
            session.note_lost(piece, "")
            return
        source = f"the worker at {worker.server.address}"
        try:
            pull.numbers = pull.take(frames, self._inbox.reader)
        except CodecError as error:
            session.failure = f"{source}: {error!s:.300}"
            return
        if pull.numbers:
            self._ask(worker, pull)
        else:
            self._inbox.take_piece(piece, lacking.give, pull.frames, source)

    # --- who does not answer

    def _expire(self, worker: _Worker, now: float) -> None:
        """Give up what has taken too long, and a connection that nothing is asked for over."""
        late_s = now - worker.since
        # Answers come in order: only the oldest is waited for now.
        pull = next(iter(worker.pulls.values()), None)
        if pull is None:
            if late_s > UNUSED_S:
                self._close(worker)
        elif not worker.is_connected:
            if late_s > CONNECT_S:
                self._fail(worker, f"no connection within {CONNECT_S:.0f} s")
        elif late_s > ANSWER_S + sum(pull.piece.piece.frames) / SLOW_BYTES_PER_S:
            self._fail(worker, "connected, and no answer")

    def _fail(self, worker: _Worker, reason: str) -> None:
        """Ask a worker again that was connected to; give up one that is out of reach."""
        self._close(worker)
        token, pieces = worker.server.token, [pull.piece for pull in worker.pulls.values()]
        silences = self._silences.get(token, 0) + 1
        if worker.is_connected and silences < MOST_SILENCES:
            self._silences[token] = silences
            for piece in pieces:
                self._begin(piece)
            return
        times = f" {silences} times in a row" if worker.is_connected else ""
        # On this host no process listens for one that has ended.
        is_known = token in self._silences or self._inbox.reader.on_host
        is_gone = is_known and not worker.is_connected
        self._give_up(worker.server, f"{reason}{times}", pieces, is_gone)

    def _give_up(
        self, server: PayloadServer, why: str, pieces: Iterable[PieceToPull], is_gone: bool = False
    ) -> None:
        """Have a worker's pieces sent on from now on; one that has ended the balancer knows."""
        shown = f"{server.address or 'no address'}: {why}"
        self._unreachable[server.token] = shown
        if not is_gone:
            logger.warning(
                "%s gets samples of the worker at %s through the balancer: it cannot pull them",
                self._inbox.name, shown,
            )  # fmt: skip
        for piece in pieces:
            self._inbox.session.note_lost(piece, shown)

    def _close(self, worker: _Worker) -> None:
        for socket in (worker.socket, worker.monitor):
            if socket in worker.poller:  # else a signal's handler has raised in between
                worker.poller.unregister(socket)
        if not worker.socket.closed:
            worker.socket.disable_monitor()
        worker.monitor.close(linger=0)
        worker.socket.close(linger=0)
        self._workers.pop(worker.server.token, None)
