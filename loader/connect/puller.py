"""A rank's sockets to the workers from which it pulls payloads.

They live in the context of the rank's sockets, and close with it while a process is forked. As
everything of a rank they have no thread of Python's: answers arrive while the trainer computes.
"""

import time
from collections.abc import Sequence

import zmq

from ...balancer.protocol.parts import PayloadServer
from ...balancer.protocol.payload_messages import Batch, PulledPayloads, PullFailed, PullPayloads
from ...balancer.protocol.rank_session import Arrival
from ...balancer.transport.keys import KeyPair, PeerKeys
from ...balancer.transport.sockets import connect, read_event, receive, send
from ...balancer.transport.wire import WireError
from .pull_tracker import PullTracker
from .rank_sockets import RankSockets

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


class Puller:
    """The connections to workers, by token; the tracker says what is asked over them."""

    def __init__(self, sockets: RankSockets, tracker: PullTracker) -> None:
        self.tracker = tracker
        self._sockets = sockets
        self._connections: dict[int, tuple[zmq.Socket[bytes], zmq.Poller]] = {}
        sockets.before_closing = self.close

    def with_payloads(self, arrival: Arrival) -> Arrival | None:
        """Return a microbatch that is settled with all its payloads; None if some cannot be had."""
        if not arrival.batch.servers:
            return arrival
        payloads = self.tracker.payloads(arrival.batch, arrival.payloads)
        return None if payloads is None else Arrival(arrival.batch, payloads)

    def waits_for(self) -> str:
        """Return in a few words what is on its way here, "" if nothing is."""
        return f"answers of workers to {self.tracker.waiting} pulls" if self.tracker.waiting else ""

    def turn(self, arrived: Sequence[Batch]) -> list[PullFailed]:
        """Receive answers, and ask for the payloads of microbatches that have arrived.

        Returns what the balancer is to be told.
        """
        if not self._connections and self.tracker.is_empty and not any(b.servers for b in arrived):
            return []
        for token in list(self._connections):
            self._receive(token)
        self.tracker.expire(time.monotonic())
        self._close_ended()
        for server, message in self.tracker.want(arrived, time.monotonic()):
            self._ask(server, message)
        reports, self.tracker.reports = self.tracker.reports, []
        return reports

    def close(self) -> None:
        """Close all connections; what is still wanted is asked for again over new ones."""
        for token in list(self._connections):
            self._close(token)
        self.tracker.forget_connections()

    def _receive(self, token: int) -> None:
        """Receive a worker's answers, and then the events of its connection."""
        monitor = self._connections[token][0].get_monitor_socket()
        events = []
        while monitor.poll(0):
            events.append(read_event(monitor))
        # Now: what came before a connection ended is here.
        while (answer := self._answer(token)) is not None:
            self.tracker.received(token, *answer, time.monotonic())
        for event in events:
            if event == _MADE:
                self.tracker.connected(token)
            else:
                self.tracker.disconnected(token, _REASONS[event])

    def _answer(self, token: int) -> tuple[PulledPayloads, Sequence[object]] | None:
        """Return the next answer of a worker; one that sends anything else is cut off."""
        try:
            received = receive(self._connections[token][0])
        except WireError as error:
            self.tracker.disconnected(token, f"it does not speak our protocol: {error!s:.80}")
            return None
        if received is None:
            return None
        message, frames = received
        if isinstance(message, PulledPayloads):
            return message, frames
        self.tracker.disconnected(token, f"it sends {type(message).__name__}")
        return None

    def _ask(self, server: PayloadServer, message: PullPayloads) -> None:
        if server.token not in self._connections:
            try:
                self._connections[server.token] = self._connect(server)
            except (ValueError, zmq.ZMQError) as error:
                self.tracker.disconnected(server.token, f"no address to connect to: {error!s:.80}")
                return
        send(self._connections[server.token][0], message)

    def _connect(self, server: PayloadServer) -> "tuple[zmq.Socket[bytes], zmq.Poller]":
        link = self._sockets.link()
        keys = None
        if server.key:
            keys = PeerKeys(KeyPair("trainer", server.public, server.secret), server.key)
        socket = connect(
            self._sockets.context(), server.address, self._sockets.name, keys,
            monitored=_EVENTS, password=b"" if keys else server.secret,
        )  # fmt: skip
        link.poller.register(socket, zmq.POLLIN)
        link.poller.register(socket.get_monitor_socket(), zmq.POLLIN)
        return socket, link.poller

    def _close_ended(self) -> None:
        ended, self.tracker.ended = self.tracker.ended, []
        for token in ended:
            if token in self._connections:
                self._close(token)

    def _close(self, token: int) -> None:
        socket, poller = self._connections.pop(token)
        monitor = socket.get_monitor_socket()
        for each in (socket, monitor):
            if each in poller:  # else a signal's handler has raised in between
                poller.unregister(each)
        socket.disable_monitor()
        monitor.close(linger=0)
        socket.close(linger=0)
