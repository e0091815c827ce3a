"""A simulated worker process: stands for workers/daemon/loop.py, with an invented source."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import structs

from counterpoise.balancer.protocol.messages import (
    Bye,
    Message,
    PeerRejected,
    SampleFailed,
    UnknownPeer,
    Welcome,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.parts import IDLE, DecodedItem, Probed, WorkInProgress
from counterpoise.balancer.protocol.payload_messages import (
    PayloadsFreed,
    ServePayloads,
    StopServing,
)
from counterpoise.balancer.protocol.worker_session import (
    RepeatReady,
    SampleTask,
    WorkerSession,
)
from counterpoise.workers.daemon.results import LeaseResults
from tests.simulation.transport.pulls import SimulatedPullServer

Deliver = Callable[..., None]
# The workers after the first say that a sample takes them as many times this as their number.
SAMPLE_S = 0.002


@dataclass(slots=True)
class Disk:
    """The costs that a worker's host has kept, by index; nothing new is kept while it is full."""

    full_until: float = 0.0
    costs: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class WorkerProcess:
    """One worker process. `known` are the costs that it has read from the disk or measured."""

    slot: int
    incarnation: int
    count: int
    deliver: Deliver
    known: dict[int, tuple[int, ...]] = field(default_factory=dict)
    session: WorkerSession = field(default_factory=WorkerSession)
    inbox: deque[Message] = field(default_factory=deque)
    busy: bool = False
    in_progress: WorkInProgress = IDLE
    slow_until: float = 0.0
    stopped_until: float = 0.0
    hung_until: float = 0.0
    opening_until: float = 0.0
    ready: WorkerReady | None = None
    results: LeaseResults = field(default_factory=LeaseResults)
    server: SimulatedPullServer | None = None

    @property
    def peer(self) -> bytes:
        """Its address; its heartbeats come from another one."""
        return b"worker-%d-%d" % (self.slot, self.incarnation)

    @property
    def held_until(self) -> float:
        """The time at which it goes on with its messages and its work."""
        return max(self.stopped_until, self.hung_until, self.opening_until)

    @property
    def heartbeat_peer(self) -> bytes:
        """The address of its heartbeats."""
        return b"heartbeat-" + self.peer

    @property
    def party(self) -> str:
        """Its name in faults."""
        return f"worker {self.slot}"

    def send_hello(self) -> None:
        """Introduce itself."""
        hello = WorkerHello(f"w{self.slot}", self.incarnation, "host", self.slot)
        if self.server is not None:
            hello = structs.replace(hello, address=self.server.address)
        self._send(hello)

    def send_heartbeat(self) -> None:
        """Send a heartbeat, and a hello until the balancer has answered one."""
        lease, ordinal = self.in_progress
        heartbeat = WorkerHeartbeat(f"w{self.slot}", self.incarnation, lease=lease, ordinal=ordinal)
        self.deliver(self.party, self.heartbeat_peer, heartbeat)
        if self.session.state == "joining":
            self.send_hello()

    def receive(self, message: Message) -> Welcome | PeerRejected | Bye | None:
        """Handle a message; return the action that the cluster must do for it, if any."""
        action = self.session.handle(message)
        if isinstance(action, UnknownPeer):
            self._free_all()
            self.send_hello()
        elif isinstance(action, PayloadsFreed):
            if self.server is not None:
                self.server.store.free(action.serials)
        elif isinstance(action, ServePayloads | StopServing):
            if self.server is not None:
                self.server.carry(action)
        elif isinstance(action, RepeatReady):
            if self.ready is not None:
                self._send(self.ready)
        elif isinstance(action, Welcome | PeerRejected | Bye):
            return action
        return None

    def opened(self, number: int) -> None:
        """Report that the source is open."""
        self.results.clear()
        self._free_all()
        self.ready = WorkerReady(self.count, "simulated", number)
        self._send(self.ready)

    def next_task(self) -> SampleTask | None:
        """Return the next task; results of one lease are sent before work on another."""
        task = self.session.tasks.popleft() if self.session.tasks else None
        if self.results and (task is None or task.lease != self.results.lease):
            self._send_results()
        return task

    def fail(self, task: SampleTask, key: str) -> None:
        """Report that a sample cannot be used."""
        reason = f"{task.kind} failed"
        self._send(SampleFailed(task.lease, task.ref.ordinal, key, reason, False))

    def measured(self, task: SampleTask, probed: Probed) -> None:
        """Keep a sample's costs until its lease is done."""
        self.results.add_probed(task.lease, probed, self._took_s())

    def decoded(self, task: SampleTask, item: DecodedItem, payload: bytes) -> None:
        """Send a decoded sample, with others of its lease as if all were quickly decoded."""
        serial = 0 if self.server is None else self.server.store.keep(payload)
        if serial:
            item = structs.replace(item, serial=serial, nbytes=len(payload))
        frame = None if serial else payload
        if self.results.add_decoded(task.lease, item, frame, self._took_s()):
            self._send_results()

    def _took_s(self) -> float:
        """Return how long a sample took, for the size of leases: they differ between workers.

        The first gets up to 10 samples of several steps, which it has done before others help, even
        where each lease comes twice.
        """
        return SAMPLE_S * (self.slot or 0.5)

    def _free_all(self) -> None:
        if self.server is not None:
            self.server.store.free_all()

    def _send_results(self) -> None:
        for message, payloads in self.results.take():
            self._send(message, *payloads)

    def _send(self, message: Message, *payloads: object) -> None:
        self.deliver(self.party, self.peer, message, payloads)
