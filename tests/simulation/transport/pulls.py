"""Payloads that simulated ranks pull from simulated workers: stands for workers/serving/.

What both sides keep track of is real. Requests and answers take time and come in order; now and
then a connection cannot be made or is cut, an answer is lost or comes too late, a payload is gone,
or is not what was announced.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from counterpoise.balancer.protocol.messages import Message
from counterpoise.balancer.protocol.parts import PayloadServer
from counterpoise.balancer.protocol.payload_messages import (
    Batch,
    PulledPayloads,
    PullPayloads,
    ServePayloads,
    StopServing,
)
from counterpoise.balancer.protocol.rank_session import RankSession
from counterpoise.loader.connect.pull_tracker import PullTracker
from counterpoise.workers.serving.server import PayloadStore
from tests.simulation.transport.network import SimulatedNetwork

# Of a worker's payloads: room for some.
MOST_BYTES = 4096
# How long ranks wait for a connection and for an answer; some answers come later than that.
CONNECT_S, ANSWER_S, LATE_S = 0.5, 0.5, 1.5
# The chances that a worker is out of a rank's reach, and of what may become of a request.
OUT_OF_REACH = 0.06
CUT, LOST, LATE, GONE = 0.02, 0.01, 0.01, 0.02
# One answer of a worker process is rubbish, after this many.
RUBBISH_AFTER = 3


@dataclass(slots=True)
class SimulatedPullServer:
    """One worker process' payloads; `silent_until` is asked when it can answer."""

    address: str
    silent_until: Callable[[], float] = lambda: 0.0
    store: PayloadStore = field(default_factory=lambda: PayloadStore(MOST_BYTES))
    is_there: bool = True
    _answers: int = 0

    def carry(self, way: ServePayloads | StopServing) -> None:
        """Serve payloads, or keep no further one, as the balancer says."""
        if isinstance(way, ServePayloads):
            self.store.begin(way.token, way.most_bytes)
        else:
            self.store.end()

    def answer(self, request: PullPayloads) -> tuple[PulledPayloads, list[bytes]]:
        """Return the answer to a rank; one of them has a payload that is too short."""
        message, payloads = self.store.answer(request)
        self._answers += 1
        if self._answers == RUBBISH_AFTER and payloads:
            payloads[0] = payloads[0][1:]
        return message, payloads


class SimulatedPuller:
    """One rank process' access to all workers' payloads; `servers` are all that ever were."""

    def __init__(
        self,
        servers: dict[str, SimulatedPullServer],
        network: SimulatedNetwork,
        delay_s: float,
        news: Callable[[], None],
    ) -> None:
        """`news` is called when an answer has come, or will never come."""
        self.tracker = PullTracker(lambda _, __: "", CONNECT_S, ANSWER_S)
        self._servers = servers
        self._network = network
        self._delay_s = delay_s
        self._news = news
        self._has_left = False
        # By token: which connection it is, whether the worker is in reach, and the last arrivals.
        self._connections: dict[int, int] = {}
        self._in_reach: dict[int, bool] = {}
        self._arrivals: dict[tuple[int, str], float] = {}

    def read(self, batch: Batch, frames: Collection[object]) -> tuple[object, ...] | None:
        """Return the payloads of a microbatch that is settled; None if some cannot be had."""
        return self.tracker.payloads(batch, frames)

    def is_settled(self, batch: Batch) -> bool:
        """Return whether nothing of a microbatch is on its way here."""
        return self.tracker.is_settled(batch)

    def turn(self, session: RankSession) -> list[Message]:
        """Ask for what has arrived; return what the balancer is to be told."""
        now = self._network.now
        self.tracker.expire(now)
        for token in self.tracker.ended:
            self._connections[token] = self._connections.get(token, 0) + 1
        self.tracker.ended.clear()
        for server, message in self.tracker.want(session.batches(), now):
            self._ask(server, message)
        reports, self.tracker.reports = self.tracker.reports, []
        return list(reports)

    def leave(self) -> None:
        """End: nothing arrives any more."""
        self._has_left = True

    def _ask(self, server: PayloadServer, message: PullPayloads) -> None:
        """Send a request, and draw what becomes of it; look at it when its time is over."""
        self._network.at(ANSWER_S + 2 * self._delay_s, self._look)
        token, draw = server.token, self._network.random.random
        reachable = self._in_reach.setdefault(token, draw() >= OUT_OF_REACH)
        if not reachable:
            self._later(token, "refused", lambda: self.tracker.disconnected(token, "refused"))
            return
        self._later(token, "up", lambda: self._arrive(self._servers[server.address], message))

    def _arrive(self, server: SimulatedPullServer, message: PullPayloads) -> None:
        """Have a worker answer, as soon as it can, unless something happens."""
        token, now = message.token, self._network.now
        if server.is_there and server.silent_until() > now:
            again = server.silent_until() - now
            self._network.at(again, lambda: self._arrive(server, message))
            return
        fate = self._network.random.random()
        if not server.is_there or fate < CUT:
            self._later(token, "down", lambda: self.tracker.disconnected(token, "it has ended"))
            return
        self.tracker.connected(token)
        if fate < CUT + LOST:
            return
        answer, payloads = server.answer(message)
        if fate > 1 - GONE:
            answer, payloads = PulledPayloads(message.number, ()), []
        late_s = LATE_S if fate > 1 - GONE - LATE else 0.0

        def receive() -> None:
            self.tracker.received(token, answer, payloads, self._network.now)

        self._later(token, "down", receive, late_s)

    def _look(self) -> None:
        if not self._has_left:
            self._news()

    def _later(self, token: int, way: str, action: Callable[[], None], late_s: float = 0.0) -> None:
        """Do something when a message arrives, after those before it, unless it is cut off."""
        network, connection = self._network, self._connections.setdefault(token, 0)
        delay_s = late_s + network.random.random() * 2 * self._delay_s
        before = self._arrivals.get((token, way), 0.0)
        arrival = self._arrivals[token, way] = max(before + 1e-9, network.now + delay_s)

        def do() -> None:
            if not self._has_left and self._connections[token] == connection:
                action()
                self._news()

        network.at(arrival - network.now, do)
