"""The processes of a simulated cluster: what the shells do around the sessions, without sockets."""

from collections.abc import Callable
from dataclasses import dataclass, field

from .messages import (
    DecodeDone,
    Message,
    Place,
    Probed,
    ProbeDone,
    SampleFailed,
    WorkerBeat,
    WorkerHello,
    WorkerReady,
)
from .rank_session import RankSession
from .worker_session import Greet, Open, Repeat, Task, WorkerSession

Say = Callable[..., None]
Mark = tuple[int, int, int]


@dataclass(slots=True)
class WorkerProcess:
    """A worker process: like workers/daemon.py, with a source that is made up."""

    slot: int
    incarnation: int
    count: int
    say: Say
    session: WorkerSession = field(default_factory=WorkerSession)
    busy: bool = False
    slow_until: float = 0.0
    stopped_until: float = 0.0
    hung_until: float = 0.0
    current: Task | None = None
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
        return max(self.stopped_until, self.hung_until)

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
        self.say(self.party, self.beat, WorkerBeat(f"w{self.slot}", self.incarnation))
        if self.session.state == "joining":
            self.hello()

    def takes(self, message: Message) -> None:
        """Take in a message."""
        action = self.session.handle(message)
        if isinstance(action, Greet):
            self.hello()
        elif isinstance(action, Open):
            self.probes.clear()
            self.ready = WorkerReady(self.count, "simulated", action.number)
            self._say(self.ready)
        elif isinstance(action, Repeat) and self.ready is not None:
            self._say(self.ready)

    def next_task(self) -> Task | None:
        """Return what to work on next; results that were held back are sent before another's."""
        task = self.current = self.session.next_task()
        if self.probes and (task is None or task.lease != self.probe_lease):
            self._say(ProbeDone(self.probe_lease, tuple(self.probes)))
            self.probes.clear()
        return task

    def fail(self, task: Task, key: str) -> None:
        """Say that a sample cannot be used."""
        reason = f"{task.kind} failed"
        self._say(SampleFailed(task.lease, task.ref.ordinal, key, reason, False))

    def measured(self, task: Task, probed: Probed) -> None:
        """Keep a sample's costs until the lease is done."""
        self.probe_lease = task.lease
        self.probes.append(probed)

    def decoded(self, task: Task, key: str, cost: tuple[int, ...], payload: bytes) -> None:
        """Send a decoded sample."""
        self._say(DecodeDone(task.lease, task.ref.ordinal, key, cost, b""), payload)

    def _say(self, message: Message, *payloads: bytes) -> None:
        self.say(self.party, self.peer, message, payloads)


@dataclass(slots=True)
class RankProcess:
    """A trainer process that plays some ranks: like loader/connection.py and its loop."""

    ranks: tuple[int, ...]
    life: int
    session: RankSession
    epoch: int
    at: Place
    holes: tuple[int, ...] = ()
    begun: bool = False
    training: bool = False
    done: bool = False
    heard: float = 0.0
    slow_until: float = 0.0

    @property
    def peer(self) -> bytes:
        """Its address."""
        return b"rank-%d-%d" % (self.ranks[0], self.life)

    @property
    def ledger(self) -> tuple[int, Place, tuple[int, ...]]:
        """The epoch, where all its ranks are in it, and the holes of the step there."""
        if not self.begun or self.done:
            return self.epoch, self.at, self.holes
        return self.epoch, self.session.here, self.session.holes

    @property
    def mark(self) -> Mark:
        """The first (epoch, step, microbatch) that one of its ranks has not had."""
        epoch, place, _ = self.ledger
        return epoch, place.step, place.microbatch

    @property
    def party(self) -> str:
        """Its name in faults."""
        return f"rank {self.ranks[0]}"
