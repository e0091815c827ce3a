"""Connects a trainer to its balancer: a socket driven by a rank session.

Nothing runs in the background but ZeroMQ's own thread, which needs no Python: messages that were
asked for ahead arrive while the trainer computes.
"""

import logging
import os
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import zmq
from msgspec import structs

from ...balancer.protocol.clock_offset import ClockFilter
from ...balancer.protocol.job_spec import from_json
from ...balancer.protocol.messages import EpochPosition, Message, Ping, Pong, RankBye, Ready
from ...balancer.protocol.rank_session import Arrival, RankSession
from ...balancer.transport.keys import PeerKeys
from ...balancer.transport.link import Link
from ...balancer.transport.sockets import LINGER_MS
from ..step.errors import LoaderError

logger = logging.getLogger(__name__)

# Pause between pings while waiting, and the silence after which a balancer is taken for dead.
PING_S = 1.0
PATIENCE_S = 30.0
# A balancer that is silent this long may be reachable under CURVE: the clear channel is closed.
CLEAR_PATIENCE_S = 5.0
# A wait during which the balancer answers, but has no batch, is logged after this time.
LOG_WAIT_S = 10.0


class Connection:
    """A rank's connection to a balancer; not safe to share between threads or processes."""

    def __init__(
        self,
        endpoint: str,
        ranks: tuple[int, ...],
        job: str,
        prefetch: int,
        watch: Callable[[], str] = lambda: "",
        watched_fd: int | None = None,
        patience_s: float = 0.0,
        needed: object = None,
        keys: PeerKeys | None = None,
    ) -> None:
        """Connect, and introduce this rank.

        `watch` returns why the local processes have failed, empty if they have not; it is asked
        when `watched_fd` is readable and at every ping. At the end the balancer is given at most
        `patience_s` to say that no other rank needs it; until then `needed` is kept alive. With
        `keys` the balancer must be the one that they name.
        """
        self.endpoint = endpoint
        self.session = RankSession(ranks, job, prefetch, from_json(job).microbatches)
        self._watch = watch
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        name = f"rank-{ranks[0]}.{os.getpid()}.{uuid.uuid4().hex}".encode()
        self._link = Link(self._context, endpoint, name, keys)
        if watched_fd is not None:
            self._link.poller.register(watched_fd, zmq.POLLIN)
        self._clock = ClockFilter()
        self._heard = time.monotonic()
        self._socket = _Socket(self._context, self._link, self.session, patience_s, os.getpid())
        self._leave = weakref.finalize(self, _close, self._socket, needed)
        self._send([self.session.hello])

    def wait_ready(self) -> Ready:
        """Wait until the job runs; return the number of samples. Raises LoaderError."""
        self._wait(lambda: self.session.ready is not None, None)
        ready = self.session.ready
        if ready is None:
            self._fail("the job did not start")
        return ready

    def begin(
        self, epoch: int, at: EpochPosition, holes: tuple[int, ...] = (), served: int = 0
    ) -> None:
        """Start the next run; `holes` and `served` as in RankSession.begin."""
        self._send(self.session.begin(epoch, at, holes, served))
        self._send(self.session.new_requests())

    def offer(self, step: int, pickled: bytes, pin: int = -1) -> None:
        """Offer one batch of a loop without balancing."""
        self._send(self.session.submit(step, pickled, pin))

    def next(self, timeout_s: float | None = None) -> Arrival | None:
        """Return the next microbatch in order, or None at the end of the run.

        Raises LoaderError when the run cannot go on, TimeoutError after `timeout_s`.
        """
        self._drain()
        taken = self.session.take()
        if taken is None:
            self._wait(lambda: self._has_next(), timeout_s)
            taken = self.session.take()
            if taken is None:
                return None
        arrival, messages = taken
        self._send(messages)
        self._send(self.session.new_requests())
        return arrival

    def close(self) -> None:
        """Leave the balancer and close the socket; wait if the balancer serves other ranks."""
        self._leave()

    def _has_next(self) -> bool:
        return self.session.has_next() or self.session.at_end()

    def _wait(self, done: Callable[[], bool], timeout_s: float | None) -> None:
        started = self._heard = time.monotonic()
        logged = False
        while not done():
            waited = time.monotonic() - started
            if timeout_s is not None and waited > timeout_s:
                raise TimeoutError(f"no batch within {timeout_s} s")
            left = PING_S if timeout_s is None else min(PING_S, timeout_s - waited + 0.001)
            if self._link.poller.poll(int(1000 * left) + 1):
                self._drain()
                self._check_processes()
                self._send(self.session.new_requests())
            else:
                self._check_silence()
                self._send(self.session.unanswered())
            if waited > LOG_WAIT_S and not logged and self.session.status is not None:
                logged = True
                logger.warning("waiting for %s", self.session.status.waiting)

    def _drain(self) -> None:
        while (received := self._link.receive()) is not None:
            self._heard = time.monotonic()
            self.session.handle(*received)
            if isinstance(received[0], Pong):
                self._clock.record_response(received[0].number, received[0].clock_us, self._heard)
        if self.session.failure:
            self._fail(self.session.failure)

    def _check_processes(self) -> None:
        reason = self._watch()
        if reason:
            self._socket.patience_s = 0.0
            self._fail(reason)

    def _check_silence(self) -> None:
        self._check_processes()
        refusal = self._link.handshakes.rejection_reason()
        if refusal:
            self._fail(f"{self.endpoint}: {refusal}")
        silent = time.monotonic() - self._heard
        if silent > CLEAR_PATIENCE_S:
            self._link.leave_clear_channel()
        if silent > PATIENCE_S:
            self._fail(
                f"the balancer at {self.endpoint} has not answered for {silent:.0f} s: "
                "is it running, and is the address right?"
            )

    def _send(self, messages: list[Message]) -> None:
        for message in messages:
            self._link.send(self._timed(message) if isinstance(message, Ping) else message)

    def _timed(self, ping: Ping) -> Ping:
        """Return a ping with this machine's clock offset, which asks to measure it again."""
        best = self._clock.best()
        number = self._clock.request(time.monotonic(), time.time())
        return structs.replace(ping, number=number, ahead_us=best.ahead_us, error_us=best.error_us)

    def _fail(self, reason: str) -> NoReturn:
        raise LoaderError(reason)


@dataclass(slots=True)
class _Socket:
    """The part of a connection that must be closed, however the connection ends."""

    context: "zmq.Context[zmq.Socket[bytes]]"
    link: Link
    session: RankSession
    patience_s: float
    owner: int


def _close(socket: _Socket, _: object) -> None:
    """Leave the balancer and wait for its answer if others need us; no-op in a forked copy."""
    if os.getpid() != socket.owner:
        return
    socket.link.send(RankBye())
    deadline = time.monotonic() + socket.patience_s
    while not socket.session.left and (left := deadline - time.monotonic()) > 0:
        socket.link.poller.poll(int(1000 * left) + 1)
        while (received := socket.link.receive()) is not None:
            socket.session.handle(*received)
    socket.link.close(LINGER_MS["trainer"])
    socket.context.destroy(linger=LINGER_MS["trainer"])
