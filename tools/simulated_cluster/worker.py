"""A simulated worker process: stands for workers/daemon/loop.py, with an invented source."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ...balancer.protocol.messages import (
    DecodeDone,
    Message,
    Probed,
    ProbeDone,
    SampleFailed,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
)
from ...balancer.protocol.parts import IDLE, WorkInProgress
from ...balancer.protocol.worker_session import (
    EndWorker,
    OpenSource,
    RepeatReady,
    SampleTask,
    SayHello,
    WorkerSession,
)

Deliver = Callable[..., None]


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
    probes: list[Probed] = field(default_factory=list)
    probe_lease: int = 0

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
        self._send(WorkerHello(f"w{self.slot}", self.incarnation, "host", self.slot))

    def send_heartbeat(self) -> None:
        """Send a heartbeat, and a hello until the balancer has answered one."""
        lease, ordinal = self.in_progress
        heartbeat = WorkerHeartbeat(f"w{self.slot}", self.incarnation, lease=lease, ordinal=ordinal)
        self.deliver(self.party, self.heartbeat_peer, heartbeat)
        if self.session.state == "joining":
            self.send_hello()

    def receive(self, message: Message) -> OpenSource | EndWorker | None:
        """Handle a message; return the action that the cluster must do for it, if any."""
        action = self.session.handle(message)
        if isinstance(action, SayHello):
            self.send_hello()
        elif isinstance(action, RepeatReady):
            if self.ready is not None:
                self._send(self.ready)
        else:
            return action
        return None

    def opened(self, number: int) -> None:
        """Report that the source is open."""
        self.probes.clear()
        self.ready = WorkerReady(self.count, "simulated", number)
        self._send(self.ready)

    def next_task(self) -> SampleTask | None:
        """Return the next task; results of one lease are sent before work on another."""
        task = self.session.next_task()
        if self.probes and (task is None or task.lease != self.probe_lease):
            self._send(ProbeDone(self.probe_lease, tuple(self.probes)))
            self.probes.clear()
        return task

    def fail(self, task: SampleTask, key: str) -> None:
        """Report that a sample cannot be used."""
        reason = f"{task.kind} failed"
        self._send(SampleFailed(task.lease, task.ref.ordinal, key, reason, False))

    def measured(self, task: SampleTask, probed: Probed) -> None:
        """Keep a sample's costs until its lease is done."""
        self.probe_lease = task.lease
        self.probes.append(probed)

    def decoded(self, task: SampleTask, key: str, cost: tuple[int, ...], payload: bytes) -> None:
        """Send a decoded sample."""
        self._send(DecodeDone(task.lease, task.ref.ordinal, key, cost, b""), payload)

    def _send(self, message: Message, *payloads: bytes) -> None:
        self.deliver(self.party, self.peer, message, payloads)
