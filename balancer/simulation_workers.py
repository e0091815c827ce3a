"""The workers of a simulated cluster: like workers/daemon.py, with a source that is made up."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from .messages import (
    DecodeDone,
    Lease,
    Message,
    Probed,
    ProbeDone,
    SampleFailed,
    WorkerBeat,
    WorkerHello,
    WorkerReady,
)
from .simulation_world import SLOW, World
from .worker_session import Greet, Open, Repeat, Task, WorkerSession

Say = Callable[..., None]
BEAT_S = 1.0


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


class Workers:
    """All worker processes, by address."""

    def __init__(self, world: World, say: Say) -> None:
        self.world = world
        self.say = say
        self._alive: dict[bytes, WorkerProcess] = {}
        self._incarnation = [0] * world.settings.workers

    def start(self, slot: int) -> None:
        """Start a worker process."""
        world = self.world
        worker = WorkerProcess(slot, self._incarnation[slot], world.settings.count, self.say)
        self._alive[worker.peer] = worker
        for address in (worker.peer, worker.beat):
            world.peers[address] = (worker.party, lambda message, _: self._hear(worker, message))
        worker.hello()
        self._beat(worker)

    def crash(self, slot: int, down_s: float) -> None:
        """Let a worker process die; a new one is there after a while."""
        for worker in [each for each in self._alive.values() if each.slot == slot]:
            self.world.trace("DIES", worker.peer.decode())
            for address in (worker.peer, worker.beat):
                del self.world.peers[address]
            del self._alive[worker.peer]
            self.world.network.sever(worker.party)
            self._incarnation[slot] += 1
            self.world.network.at(down_s, lambda: self.start(slot))

    def hold_up(self, kind: str, party: str, until: float = math.inf) -> None:
        """Let a worker stop, hang or be slow until then."""
        for worker in self._alive.values():
            if worker.party == party and kind == "stop":
                worker.stopped_until = until
            elif worker.party == party and kind == "hang":
                worker.hung_until = until
            elif worker.party == party:
                worker.slow_until = until

    def _is_alive(self, worker: WorkerProcess) -> bool:
        return self._alive.get(worker.peer) is worker

    def _beat(self, worker: WorkerProcess) -> None:
        if self._is_alive(worker):
            if self.world.now >= worker.stopped_until:
                worker.say_alive()
            self.world.network.at(BEAT_S, lambda: self._beat(worker))

    def _hear(self, worker: WorkerProcess, message: Message) -> None:
        if not self._is_alive(worker):
            return
        late_s = worker.held_until - self.world.now
        if late_s > 0:
            self.world.network.at(late_s, lambda: self._hear(worker, message))
            return
        if self.world.traced:
            self.world.trace(worker.peer.decode(), "hears", message)
        worker.takes(message)
        if isinstance(message, Lease) and not worker.busy:
            self._work(worker)

    def _work(self, worker: WorkerProcess) -> None:
        """Begin with the next task, if there is one."""
        task = worker.next_task()
        worker.busy = task is not None
        if task is not None:
            slow = SLOW if self.world.now < worker.slow_until else 1.0
            work_s = self.world.random.random() * 2 * self.world.settings.work_s * slow
            self.world.network.at(work_s, lambda: self._finish(worker, task))

    def _finish(self, worker: WorkerProcess, task: Task) -> None:
        if not self._is_alive(worker):
            return
        late_s = worker.held_until - self.world.now
        if late_s > 0:
            self.world.network.at(late_s, lambda: self._finish(worker, task))
            return
        if task.kind == "decode" and task.ref.index in self.world.settings.deadly:
            self.crash(worker.slot, self.world.settings.restart_s)
            return
        self._answer(worker, task)
        self._work(worker)

    def _answer(self, worker: WorkerProcess, task: Task) -> None:
        settings, index, ordinal = self.world.settings, task.ref.index, task.ref.ordinal
        key, cost = f"k{index}", settings.cost(index)
        if index in (settings.broken if task.kind == "probe" else settings.unreadable):
            worker.fail(task, key)
        elif task.kind == "probe" and not settings.decode_first:
            worker.measured(task, Probed(ordinal, key, cost, settings.payload_bytes))
        else:
            payload = (b"%d/%d " % (task.epoch, index)).ljust(settings.payload_bytes, b".")
            worker.decoded(task, key, cost, payload)
