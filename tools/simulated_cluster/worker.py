"""A worker of a simulated cluster: like workers/daemon/loop.py, with a source that is made up."""

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

Say = Callable[..., None]


@dataclass(slots=True)
class Disk:
    """What a worker's host keeps of probed costs, by index; nothing new while it is full."""

    full_until: float = 0.0
    costs: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class WorkerProcess:
    """One worker process. `known` are the costs that it has read from the disk or measured."""

    slot: int
    incarnation: int
    count: int
    say: Say
    known: dict[int, tuple[int, ...]] = field(default_factory=dict)
    session: WorkerSession = field(default_factory=WorkerSession)
    inbox: deque[Message] = field(default_factory=deque)
    busy: bool = False
    hand: WorkInProgress = IDLE
    slow_until: float = 0.0
    stopped_until: float = 0.0
    hung_until: float = 0.0
    opening_until: float = 0.0
    ready: WorkerReady | None = None
    probes: list[Probed] = field(default_factory=list)
    probe_lease: int = 0

    @property
    def peer(self) -> bytes:
        """Its address; its beats come from another one."""
        return b"worker-%d-%d" % (self.slot, self.incarnation)

    @property
    def held_until(self) -> float:
        """When it goes on with its messages and its work."""
        return max(self.stopped_until, self.hung_until, self.opening_until)

    @property
    def beat(self) -> bytes:
        """The address of its beats."""
        return b"beat-" + self.peer

    @property
    def party(self) -> str:
        """Its name in faults."""
        return f"worker {self.slot}"

    def hello(self) -> None:
        """Say who it is."""
        self._say(WorkerHello(f"w{self.slot}", self.incarnation, "host", self.slot))

    def say_alive(self) -> None:
        """Say that it is alive, and hello as long as nobody has answered."""
        lease, ordinal = self.hand
        beat = WorkerHeartbeat(f"w{self.slot}", self.incarnation, lease=lease, ordinal=ordinal)
        self.say(self.party, self.beat, beat)
        if self.session.state == "joining":
            self.hello()

    def takes(self, message: Message) -> OpenSource | EndWorker | None:
        """Take in a message; return what only the surroundings can do."""
        action = self.session.handle(message)
        if isinstance(action, SayHello):
            self.hello()
        elif isinstance(action, RepeatReady):
            if self.ready is not None:
                self._say(self.ready)
        else:
            return action
        return None

    def opened(self, number: int) -> None:
        """Say that the source is open."""
        self.probes.clear()
        self.ready = WorkerReady(self.count, "simulated", number)
        self._say(self.ready)

    def next_task(self) -> SampleTask | None:
        """Return what to work on next; results that were held back are sent before another's."""
        task = self.session.next_task()
        if self.probes and (task is None or task.lease != self.probe_lease):
            self._say(ProbeDone(self.probe_lease, tuple(self.probes)))
            self.probes.clear()
        return task

    def fail(self, task: SampleTask, key: str) -> None:
        """Say that a sample cannot be used."""
        reason = f"{task.kind} failed"
        self._say(SampleFailed(task.lease, task.ref.ordinal, key, reason, False))

    def measured(self, task: SampleTask, probed: Probed) -> None:
        """Keep a sample's costs until the lease is done."""
        self.probe_lease = task.lease
        self.probes.append(probed)

    def decoded(self, task: SampleTask, key: str, cost: tuple[int, ...], payload: bytes) -> None:
        """Send a decoded sample."""
        self._say(DecodeDone(task.lease, task.ref.ordinal, key, cost, b""), payload)

    def _say(self, message: Message, *payloads: bytes) -> None:
        self.say(self.party, self.peer, message, payloads)
