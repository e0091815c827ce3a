"""A trainer's pulls: the pieces of its microbatches, from the workers that keep them.

A worker that cannot be connected to, or that answers nothing several times in a row, is *out of
reach*: nothing more is asked of it, and the balancer is told so of every piece that it has, and
relays them. Every wait has an end. The connections live in the context of the rank's sockets, and
close with it while a process is forked; there is no thread of Python's.
"""

import logging
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from ...balancer.job.messages import PulledFrames, PullFrames
from ...balancer.parties.incoming import PieceToPull
from ...balancer.protocol.parts import PayloadServer
from ...balancer.transport.keys import KeyPair, PeerKeys
from ...balancer.transport.sockets import connect, read_event, receive, send
from ...balancer.transport.wire import WireError
from ...workers.codec.fields import CodecError
from ..connect.rank_sockets import RankSockets
from ..step.errors import LoaderError
from .batch_reader import BatchReader
from .inbox import Inbox

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
    zmq.EVENT_CONNECT_RETRIED: "nobody listens there, or the way is closed",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the worker does not let this rank in",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "what listens there is no worker of this job",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "what listens there ends the connection",
}
_EVENTS = sum(_REASONS) | _MADE


@dataclass(slots=True, eq=False)
class _Pull:
    """A piece that was asked for; numbers: of the frames that were, frames: all that are here."""

    piece: PieceToPull
    wanted: Container[str] | None
    numbers: Sequence[int]
    frames: list[Any]
    asked_at: float

    @property
    def nbytes(self) -> int:
        """The size of the answer."""
        return sum(self.piece.piece.frames[number] for number in self.numbers)


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker that is pulled from; heard_at: when it last answered; is_known: it ever has."""

    server: PayloadServer
    socket: "zmq.Socket[bytes]"
    poller: zmq.Poller
    began_at: float
    is_connected: bool = False
    is_known: bool = False
    heard_at: float = 0.0
    silences: int = 0
    pulls: dict[int, _Pull] = field(default_factory=dict)


class PiecePuller:
    """The connections to workers, by token."""

    def __init__(self, sockets: RankSockets, inbox: Inbox, transport: str) -> None:
        self._sockets, self._inbox, self._transport = sockets, inbox, transport
        self._workers: dict[int, _Worker] = {}
        self._unreachable: dict[int, str] = {}
        self._last = 0
        sockets.before_closing = self.close

    def waits_for(self) -> str:
        """Return in a few words what is on its way here, "" if nothing is."""
        waiting = sum(len(worker.pulls) for worker in self._workers.values())
        return f"answers of workers to {waiting} pulls" if waiting else ""

    def turn(self) -> None:
        """Take answers, and ask for what was announced."""
        for worker in list(self._workers.values()):
            self._receive(worker)
            self._expire(worker, time.monotonic())
        for piece in self._inbox.session.take_pulls():
            self._begin(piece)

    def close(self) -> None:
        """Close all connections; what is not here is asked for again over new ones."""
        for worker in list(self._workers.values()):
            self._close(worker)
        self._inbox.session.pull_again()

    # --- asking

    def _begin(self, piece: PieceToPull) -> None:
        """Ask for a piece, or say why that cannot be."""
        session, token = self._inbox.session, piece.piece.token
        give = session.lacks(piece.rank, piece.index, piece.version)
        if give is None:
            return
        server = self._inbox.servers.get(token)
        if self._transport == "inline":
            session.note_lost(piece, 'the job has transport="inline"')
        elif server is None:
            session.note_lost(piece, "where its worker is has not been told")
        elif not server.address:
            self._give_up(server, "it serves nowhere", [piece])
        elif token in self._unreachable:
            session.note_lost(piece, self._unreachable[token])
        else:
            wanted = self._inbox.reader.wanted(give, self._inbox.epoch)
            count = len(piece.piece.frames)
            numbers = range(count) if wanted is None else (0,)
            pull = _Pull(piece, wanted, numbers, [None] * count, time.monotonic())
            worker = self._workers.get(token) or self._connect(server, [piece])
            if worker is not None:
                self._ask(worker, pull)

    def _ask(self, worker: _Worker, pull: _Pull) -> None:
        self._last += 1
        pull.asked_at = time.monotonic()
        worker.pulls[self._last] = pull
        some = () if len(pull.numbers) == len(pull.frames) else tuple(pull.numbers)
        asked = PullFrames(self._last, worker.server.token, pull.piece.piece.serial, some)
        send(worker.socket, asked)

    def _connect(self, server: PayloadServer, pieces: list[PieceToPull]) -> _Worker | None:
        """Return a worker that was connected to; None where its address is none."""
        link = self._sockets.link()
        keys = None
        if server.key:
            keys = PeerKeys(KeyPair("trainer", server.public, server.secret), server.key)
        try:
            socket = connect(
                self._sockets.context(), server.address, self._sockets.name, keys,
                monitored=_EVENTS, password=b"" if keys else server.secret,
            )  # fmt: skip
        except (ValueError, zmq.ZMQError) as error:
            self._give_up(server, f"no address to connect to: {error!s:.80}", pieces)
            return None
        worker = self._workers[server.token] = _Worker(
            server, socket, link.poller, time.monotonic()
        )
        link.poller.register(socket, zmq.POLLIN)
        link.poller.register(socket.get_monitor_socket(), zmq.POLLIN)
        return worker

    # --- answers

    def _receive(self, worker: _Worker) -> None:
        """Take a worker's answers, and then the events of its connection."""
        monitor = worker.socket.get_monitor_socket()
        events = []
        while monitor.poll(0):
            events.append(read_event(monitor))
        # Now: what came before a connection ended is here.
        while not worker.socket.closed and (answer := self._answer(worker)) is not None:
            self._take(worker, *answer)
        for event in events:
            if worker.socket.closed:
                return
            if event == _MADE:
                worker.is_connected = worker.is_known = True
            else:
                self._fail(worker, _REASONS[event])

    def _answer(self, worker: _Worker) -> tuple[PulledFrames, list[zmq.Frame]] | None:
        """Return the next answer of a worker; one that sends anything else is cut off."""
        try:
            received = receive(worker.socket)
        except WireError as error:
            self._fail(worker, f"it does not speak our protocol: {error!s:.80}", is_final=True)
            return None
        if received is None:
            return None
        message, frames = received
        if isinstance(message, PulledFrames):
            return message, frames
        self._fail(worker, f"it sends {type(message).__name__}", is_final=True)
        return None

    def _take(self, worker: _Worker, answer: PulledFrames, frames: list[zmq.Frame]) -> None:
        pull = worker.pulls.get(answer.number)
        if pull is None:
            return  # it came too late
        worker.is_connected = worker.is_known = True
        worker.heard_at, worker.silences = time.monotonic(), 0
        piece, session = pull.piece, self._inbox.session
        give = session.lacks(piece.rank, piece.index, piece.version)
        if give is not None:
            where = f"the worker at {worker.server.address}"
            try:
                rest = _take_frames(pull, frames, self._inbox.reader)
            except CodecError as error:
                session.note_lost(piece, f"{where}: {error!s:.300}", is_rubbish=True)
            else:
                if rest:
                    pull.numbers = rest
                    self._ask(worker, pull)
                else:
                    self._inbox.take_piece(piece, give, pull.frames, where)
        del worker.pulls[answer.number]

    # --- who does not answer

    def _expire(self, worker: _Worker, now: float) -> None:
        """Give up what has taken too long, and a connection that nothing is asked for over."""
        if worker.socket.closed:
            return
        # Answers come in order: only the oldest is waited for now.
        pull = next(iter(worker.pulls.values()), None)
        if pull is None:
            if now > max(worker.heard_at, worker.began_at) + UNUSED_S:
                self._close(worker)
        elif not worker.is_connected:
            if now > max(worker.began_at, pull.asked_at) + CONNECT_S:
                self._fail(worker, f"no connection within {CONNECT_S:.0f} s")
        elif now > max(pull.asked_at, worker.heard_at) + ANSWER_S + pull.nbytes / SLOW_BYTES_PER_S:
            self._fail(worker, "connected, and no answer")

    def _fail(self, worker: _Worker, reason: str, is_final: bool = False) -> None:
        """Connect again to a worker that was there, for what was asked of it; or give it up."""
        self._close(worker)
        pulls = [pull.piece for pull in worker.pulls.values()]
        silences = worker.silences + 1
        if is_final or not worker.is_connected or silences == MOST_SILENCES:
            is_known = worker.is_known or self._inbox.reader.on_host
            is_gone = is_known and not worker.is_connected
            many = f" {silences} times in a row" if silences > 1 else ""
            self._give_up(worker.server, f"{reason}{many}", pulls, is_gone)
        elif pulls and (again := self._connect(worker.server, pulls)) is not None:
            again.silences, again.is_known = silences, True
            for piece in pulls:
                self._begin(piece)

    def _give_up(
        self, server: PayloadServer, reason: str, pieces: list[PieceToPull], is_gone: bool = False
    ) -> None:
        """Have a worker's pieces relayed from now on; one that has ended is the balancer's."""
        shown = f"{server.address}: {reason}" if server.address else reason
        if server.token not in self._unreachable and not is_gone:
            if self._transport == "direct":
                raise LoaderError(
                    f"the worker at {shown}: {self._inbox.name} cannot pull from it; let ranks "
                    'reach its address (counterpoise worker --serve), or leave transport="direct"'
                )
            logger.warning(
                "%s gets samples of the worker at %s through the balancer: it cannot pull them",
                self._inbox.name, shown,
            )  # fmt: skip
        self._unreachable[server.token] = shown
        for piece in pieces:
            self._inbox.session.note_lost(piece, shown)

    def _close(self, worker: _Worker) -> None:
        if worker.socket.closed:
            return
        poller, monitor = worker.poller, worker.socket.get_monitor_socket()
        for each in (worker.socket, monitor):
            if each in poller:  # else a signal's handler has raised in between
                poller.unregister(each)
        worker.socket.disable_monitor()
        monitor.close(linger=0)
        worker.socket.close(linger=0)
        self._workers.pop(worker.server.token, None)


def _take_frames(pull: _Pull, frames: Sequence[Any], reader: BatchReader) -> Sequence[int]:
    """Keep frames that have come; return the numbers of those that are to be asked for next.

    Raises CodecError where they are not what was announced.
    """
    announced = pull.piece.piece.frames
    if not frames:
        raise CodecError("it has not what it announced")
    sizes = [len(frame) for frame in frames]
    if sizes != [announced[number] for number in pull.numbers]:
        raise CodecError(f"frames of {sizes!s:.80} bytes, which were not announced")
    for number, frame in zip(pull.numbers, frames, strict=True):
        pull.frames[number] = frame
    if pull.wanted is None or len(pull.numbers) != 1 or pull.numbers[0] != 0:
        return ()
    return reader.frames_of(frames[0], announced, pull.wanted)[1:]
