"""All workers of a simulated cluster: their processes, disks and faults."""

import math
from collections.abc import Callable

from counterpoise.balancer.protocol.messages import Bye, Message, PeerRejected, Welcome
from counterpoise.balancer.protocol.parts import IDLE, DecodedItem, Probed
from counterpoise.balancer.protocol.payload_messages import Lease
from counterpoise.balancer.protocol.worker_session import (
    HEARTBEAT_S,
    SampleTask,
)
from tests.simulation.faults import Fault
from tests.simulation.worker import Deliver, Disk, WorkerProcess
from tests.simulation.world import SLOW, World

# The chance that messages under way are lost with a process that died.
LOST_WITH_PROCESS = 0.5


class Workers:
    """All worker processes, by address; more than one may play a slot."""

    def __init__(self, world: World, deliver: Deliver) -> None:
        self.world = world
        self.deliver = deliver
        self._alive: dict[bytes, WorkerProcess] = {}
        self._incarnation = [0] * world.settings.workers
        self._disks = [Disk() for _ in range(world.settings.workers)]

    def start(self, slot: int, incarnation: int = 0) -> None:
        """Start a worker process."""
        world, known = self.world, dict(self._disks[slot].costs)
        worker = WorkerProcess(slot, incarnation, world.settings.count, self.deliver, known)
        worker.server = world.pull_server(lambda: worker.stopped_until)
        self._alive[worker.peer] = worker
        for address in (worker.peer, worker.heartbeat_peer):
            world.peers[address] = (worker.party, lambda message, _: self._receive(worker, message))
        worker.send_hello()
        self._send_heartbeats(worker)

    def crash(self, slot: int, down_s: float) -> None:
        """Kill all processes of a slot; start a new one after `down_s`."""
        mine = [each for each in self._alive.values() if each.slot == slot]
        for worker in mine:
            self._die(worker)
        if mine:
            self._start_next(slot, down_s)

    def hold_up(self, fault: Fault) -> None:
        """Apply a fault that replaces, stops or hangs workers, or slows them down."""
        until = self.world.now + fault.lasts_s
        for worker in [each for each in self._alive.values() if fault.hits(each.party)]:
            hold_up(worker, "stop" if fault.kind == "replace" else fault.kind, until)
            if fault.kind == "replace" and self._is_last(worker):
                self._start_next(worker.slot, self.world.soon())

    def fill_disk(self, fault: Fault) -> None:
        """Fill the disks of workers, whether these live or not."""
        for slot, disk in enumerate(self._disks):
            if fault.hits(f"worker {slot}"):
                disk.full_until = self.world.now + fault.lasts_s

    def hang(self, slot: int) -> None:
        """Make a worker hang for ever."""
        for worker in self._alive.values():
            if worker.slot == slot:
                hold_up(worker, "hang", math.inf)

    def _start_next(self, slot: int, after_s: float) -> None:
        self._incarnation[slot] += 1
        incarnation = self._incarnation[slot]
        self.world.network.at(after_s, lambda: self.start(slot, incarnation))

    def _die(self, worker: WorkerProcess) -> None:
        """End a process; what it has sent may still arrive."""
        self.world.trace("DIES", worker.peer.decode())
        for address in (worker.peer, worker.heartbeat_peer):
            del self.world.peers[address]
        del self._alive[worker.peer]
        if worker.server is not None:
            worker.server.is_there = False
        if self.world.random.random() < LOST_WITH_PROCESS:
            self.world.network.sever(worker.party)

    def _is_alive(self, worker: WorkerProcess) -> bool:
        return self._alive.get(worker.peer) is worker

    def _is_last(self, worker: WorkerProcess) -> bool:
        """Return whether no later process has a worker's slot."""
        return worker.incarnation == self._incarnation[worker.slot]

    def _send_heartbeats(self, worker: WorkerProcess) -> None:
        if self._is_alive(worker):
            if self.world.now >= worker.stopped_until:
                worker.send_heartbeat()
            self.world.network.at(HEARTBEAT_S, lambda: self._send_heartbeats(worker))

    def _receive(self, worker: WorkerProcess, message: Message) -> None:
        worker.inbox.append(message)
        self._drain(worker)

    def _drain(self, worker: WorkerProcess) -> None:
        """Have a worker receive its messages, as soon as it can."""
        while self._is_alive(worker) and worker.inbox:
            if self._is_held(worker, lambda: self._drain(worker)):
                return
            self._take(worker, worker.inbox.popleft())

    def _is_held(self, worker: WorkerProcess, again: Callable[[], None]) -> bool:
        """Return whether a worker is held up now; `again` is called when it goes on."""
        late_s = worker.held_until - self.world.now
        if late_s > 0:
            self.world.network.at(late_s, again)
        return late_s > 0

    def _take(self, worker: WorkerProcess, message: Message) -> None:
        if self.world.traced:
            self.world.trace(worker.peer.decode(), "receives", message)
        action = worker.receive(message)
        if isinstance(action, PeerRejected | Bye):
            self._die(worker)
            if self._is_last(worker):
                self.world.fail(f"{worker.party} was rejected, and no other process has its slot")
        elif isinstance(action, Welcome):
            self._open(worker, action.number)
        elif isinstance(message, Lease) and not worker.busy:
            self._work(worker)

    def _open(self, worker: WorkerProcess, number: int) -> None:
        """Have a worker open its source, which takes a while."""
        open_s = self.world.random.random() * 2 * self.world.settings.open_s
        worker.opening_until = self.world.now + open_s
        self.world.network.at(open_s, lambda: self._opened(worker, number))

    def _opened(self, worker: WorkerProcess, number: int) -> None:
        if self._is_alive(worker) and not self._is_held(
            worker, lambda: self._opened(worker, number)
        ):
            worker.opened(number)

    def _work(self, worker: WorkerProcess) -> None:
        """Begin the next task, if there is one; known costs take no time."""
        task = worker.next_task()
        worker.busy = task is not None
        worker.in_progress = (task.lease, task.ref.ordinal) if task is not None else IDLE
        if task is not None:
            slow = SLOW if self.world.now < worker.slow_until else 1.0
            work_s = self.world.random.random() * 2 * self.world.settings.work_s * slow
            if task.kind == "probe" and task.ref.index in worker.known:
                work_s = 0.0
            self.world.network.at(work_s, lambda: self._finish(worker, task))

    def _finish(self, worker: WorkerProcess, task: SampleTask) -> None:
        if not self._is_alive(worker) or self._is_held(worker, lambda: self._finish(worker, task)):
            return
        if task.kind == "decode" and task.ref.index in self.world.settings.deadly:
            self._die(worker)
            if self._is_last(worker):
                self._start_next(worker.slot, self.world.settings.restart_s)
            return
        self._answer(worker, task)
        self._work(worker)

    def _answer(self, worker: WorkerProcess, task: SampleTask) -> None:
        settings, index = self.world.settings, task.ref.index
        key = f"k{index}"
        if index in (settings.broken if task.kind == "probe" else settings.unreadable):
            worker.fail(task, key)
        elif task.kind == "probe" and not settings.decode_first:
            cost = self._measure(worker, index)
            worker.measured(task, Probed(task.ref.ordinal, key, cost, settings.probed_bytes))
        else:
            payload = (b"%d/%d " % (task.epoch, index)).ljust(settings.payload_bytes, b".")
            item = DecodedItem(task.ref.ordinal, key, settings.cost(index), b"sample", 0, 0)
            worker.decoded(task, item, payload)

    def _measure(self, worker: WorkerProcess, index: int) -> tuple[int, ...]:
        """Find a sample's costs; they are kept where the disk has room."""
        if index not in worker.known:
            self.world.outcome.probed += 1
            worker.known[index] = self.world.settings.cost(index)
            disk = self._disks[worker.slot]
            if self.world.now >= disk.full_until:
                disk.costs[index] = worker.known[index]
        return worker.known[index]


def hold_up(worker: WorkerProcess, kind: str, until: float) -> None:
    """Make a worker stop, hang or be slow until then, or longer if it does already."""
    if kind == "stop":
        worker.stopped_until = max(worker.stopped_until, until)
    elif kind == "hang":
        worker.hung_until = max(worker.hung_until, until)
    else:
        worker.slow_until = max(worker.slow_until, until)
