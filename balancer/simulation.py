"""The whole system in one process: coordinator, workers and ranks on a simulated network and clock.

Everything that could differ between two runs of a real cluster (delays, order of arrival, speed of
workers, crashes and restarts) is drawn from one seed, so a run can be replayed exactly. Payloads
are made from the sample's index and epoch, as a decoder with seeded augmentation would make them.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from .coordinator import Coordinator
from .job import Job, to_json
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
from .peers import Send
from .rank_session import RankSession
from .wire import decode, encode
from .worker_session import Task, WorkerSession

START = Place(0, 0, 0, 0)
Cost = Callable[[int], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Settings:
    """What is simulated: sizes, delays in seconds, chances of faults, all per seed.

    broken: indexes that cannot be probed; unreadable: indexes that probe but do not decode.
    crashes: (time, worker) at which a worker process dies; it is back `restart_s` later.
    hangs: (time, worker) at which one stops working without dying.
    """

    job: Job
    count: int
    cost: Cost
    workers: int = 2
    processes: tuple[tuple[int, ...], ...] = ((0,),)
    delay_s: float = 0.01
    work_s: float = 0.05
    train_s: float = 0.02
    prefetch: int = 2
    payload_bytes: int = 100
    broken: frozenset[int] = frozenset()
    unreadable: frozenset[int] = frozenset()
    crashes: tuple[tuple[float, int], ...] = ()
    restart_s: float = 1.0
    hangs: tuple[tuple[float, int], ...] = ()
    decode_first: bool = False
    duplicate: float = 0.0
    epoch: int = 0
    at: Place = START
    limit_s: float = 10_000.0


@dataclass(slots=True)
class Outcome:
    """What happened: per rank the delivered (step, microbatch, keys, payload digests)."""

    delivered: dict[int, list[tuple[int, int, tuple[str, ...], tuple[bytes, ...]]]] = field(
        default_factory=dict
    )
    places: list[Place] = field(default_factory=list)
    holes: list[str] = field(default_factory=list)
    trouble: str = ""
    most_held: int = 0
    seconds: float = 0.0


class Simulation:
    """One run of a simulated cluster."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings = settings
        self.random = random.Random(seed)
        self.now = 0.0
        self.coordinator = Coordinator(settings.job)
        self.outcome = Outcome()
        self.workers: dict[bytes, WorkerSession] = {}
        self.ranks: dict[bytes, RankSession] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._latest: dict[tuple[bytes, bytes], float] = {}
        self._incarnation = [0] * settings.workers
        self._open: set[bytes] = set()
        self._hung: set[bytes] = set()

    def run(self) -> Outcome:
        """Run until every rank is at its end, or something makes that impossible."""
        for slot in range(self.settings.workers):
            self._at(self._delay(), lambda slot=slot: self._start_worker(slot))  # type: ignore[misc]
        for time, slot in self.settings.crashes:
            self._at(time, lambda slot=slot: self._crash(slot))  # type: ignore[misc]
        for time, slot in self.settings.hangs:
            self._at(time, lambda slot=slot: self._hung.add(self._name(slot)))  # type: ignore[misc]
        for ranks in self.settings.processes:
            peer = b"rank-%d" % ranks[0]
            job = self.settings.job
            session = RankSession(ranks, to_json(job), self.settings.prefetch, job.microbatches)
            self.ranks[peer] = session
            self._open.add(peer)
            self.outcome.delivered |= {rank: [] for rank in ranks}
            self._to_coordinator(peer, session.hello)
            self._at(self._delay(), lambda peer=peer: self._train(peer, begin=True))  # type: ignore[misc]
        while self._open and self._events and self.now < self.settings.limit_s:
            self.now, _, action = heapq.heappop(self._events)
            action()
        if self._open and not self.outcome.trouble:
            self.outcome.trouble = f"stuck at {self.now:.1f} s: {sorted(self._open)}"
        self.outcome.seconds = self.now
        return self.outcome

    # --- the network and the clock

    def _at(self, after: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self.now + after, self._serial, action))

    def _delay(self) -> float:
        return self.random.expovariate(1 / self.settings.delay_s)

    def _in_order(self, source: bytes, target: bytes) -> float:
        """Return a delay that keeps two peers' messages in order, as a ZeroMQ pipe does."""
        arrival = max(self.now + self._delay(), self._latest.get((source, target), 0.0) + 1e-9)
        self._latest[source, target] = arrival
        return arrival - self.now

    def _to_coordinator(
        self, peer: bytes, message: Message, payloads: tuple[bytes, ...] = ()
    ) -> None:
        wired = decode(encode(message), len(payloads))
        size = sum(map(len, payloads))

        def arrive() -> None:
            self._emit(self.coordinator.handle(peer, wired, payloads, size, self.now))

        self._at(self._in_order(peer, b""), arrive)
        if self.random.random() < self.settings.duplicate:
            self._at(self._in_order(peer, b""), arrive)

    def _emit(self, effects: list[Send]) -> None:
        run = self.coordinator.run
        if run is not None:
            self.outcome.most_held = max(self.outcome.most_held, run.delivery.held_bytes)
        for effect in effects:
            peer = effect.peer
            wired = decode(encode(effect.message), len(effect.payloads))
            arrive = self._arrival(peer, wired, effect.payloads)
            self._at(self._in_order(b"", peer), arrive)
        self._at(
            max(0.0, self.coordinator.next_deadline() - self.now),
            self._tick,
        )

    def _tick(self) -> None:
        if self.now >= self.coordinator.next_deadline():
            self._emit(self.coordinator.tick(self.now))

    def _arrival(
        self, peer: bytes, message: Message, payloads: tuple[object, ...]
    ) -> Callable[[], None]:
        def arrive() -> None:
            if peer in self.workers:
                self._worker_takes(peer, message)
            elif peer in self.ranks:
                self.ranks[peer].handle(message, payloads)
                self._advance_rank(peer)
            else:
                self._emit(self.coordinator.gone(peer, message, self.now))

        return arrive

    # --- workers

    def _name(self, slot: int) -> bytes:
        return b"worker-%d-%d" % (slot, self._incarnation[slot])

    def _start_worker(self, slot: int) -> None:
        peer = self._name(slot)
        self.workers[peer] = WorkerSession()
        hello = WorkerHello(f"w{slot}", self._incarnation[slot], "host", slot)
        self._to_coordinator(peer, hello)
        self._beat(peer, slot)
        self._at(self._delay(), lambda: self._work(peer))

    def _beat(self, peer: bytes, slot: int) -> None:
        if peer in self.workers:
            self._to_coordinator(b"beat-" + peer, WorkerBeat(f"w{slot}", self._incarnation[slot]))
            self._at(1.0, lambda: self._beat(peer, slot))

    def _crash(self, slot: int) -> None:
        if self.workers.pop(self._name(slot), None) is None:
            return
        self._incarnation[slot] += 1
        self._at(self.settings.restart_s, lambda: self._start_worker(slot))

    def _worker_takes(self, peer: bytes, message: Message) -> None:
        action = self.workers[peer].handle(message)
        if type(action).__name__ == "Open":
            self._to_coordinator(peer, WorkerReady(self.settings.count, "simulated"))

    def _work(self, peer: bytes) -> None:
        session = self.workers.get(peer)
        if session is None or peer in self._hung:
            return
        task = session.next_task()
        if task is not None:
            self._answer(peer, task)
        busy = self.random.expovariate(1 / self.settings.work_s) if task else 0.01
        self._at(busy, lambda: self._work(peer))

    def _answer(self, peer: bytes, task: Task) -> None:
        index, ordinal = task.ref.index, task.ref.ordinal
        key, cost = f"k{index}", self.settings.cost(index)
        bad = self.settings.broken if task.kind == "probe" else self.settings.unreadable
        if index in bad:
            self._to_coordinator(
                peer, SampleFailed(task.lease, ordinal, key, f"{task.kind} failed", False)
            )
        elif task.kind == "probe" and not self.settings.decode_first:
            found = Probed(ordinal, key, cost, self.settings.payload_bytes)
            self._to_coordinator(peer, ProbeDone(task.lease, (found,)))
        else:
            payload = (b"%d/%d " % (task.epoch, index)).ljust(self.settings.payload_bytes, b".")
            done = DecodeDone(task.lease, ordinal, key, cost, b"")
            self._to_coordinator(peer, done, (payload,))

    # --- ranks

    def _train(self, peer: bytes, begin: bool = False) -> None:
        session = self.ranks[peer]
        if begin:
            for message in session.begin(self.settings.epoch, self.settings.at):
                self._to_coordinator(peer, message)
        self._advance_rank(peer, idle=True)

    def _advance_rank(self, peer: bytes, idle: bool = False) -> None:
        """Ask ahead; if the trainer is idle, take the next microbatch and train on it."""
        session = self.ranks[peer]
        if session.trouble:
            self.outcome.trouble = session.trouble
            self._open.discard(peer)
            return
        for message in session.asks() if session.state == "running" else []:
            self._to_coordinator(peer, message)
        if not idle:
            return
        taken = session.take()
        if taken is None:
            if session.at_end():
                self._open.discard(peer)
                return
            self._at(0.01, lambda: self._advance_rank(peer, idle=True))
            return
        arrival, messages = taken
        batch = arrival.batch
        self.outcome.delivered[batch.rank].append(
            (
                batch.step,
                batch.microbatch,
                tuple(item.key for item in batch.items),
                tuple(payload for payload in arrival.payloads if isinstance(payload, bytes)),
            )
        )
        self.outcome.holes += [hole.key for hole in batch.holes]
        if batch.microbatch + 1 == batch.microbatches:
            self.outcome.places.append(batch.after)
        for message in messages:
            self._to_coordinator(peer, message)
        self._at(self.settings.train_s, lambda: self._advance_rank(peer, idle=True))
