"""The whole system in one process: coordinator, workers and ranks on a simulated network and clock.

Everything that could differ between two runs of a real cluster (delays, order of arrival, speed of
workers, crashes and restarts) is drawn from one seed, so a run can be replayed exactly. Payloads
are made from the sample's index and epoch, as a decoder with seeded augmentation would make them.
The trainer's processes crash together and start again from their ledger, as torch elastic has it;
what they had been given after it counts as not delivered.
"""

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .coordinator import Coordinator
from .feed import Planner
from .job import Job, to_json
from .messages import Lease, Message, Place, Probed, Weights
from .peers import Send
from .plan import PlanConfig
from .planner import make_planner
from .rank_session import Arrival, RankSession
from .simulation_faults import Fault
from .simulation_network import DISTURBANCES, Disturbance, Network
from .simulation_peers import Mark, RankProcess, WorkerProcess
from .wire import decode, encode
from .worker_session import Task

START = Place(0, 0, 0, 0)
Cost = Callable[[int], tuple[int, ...]]
Given = tuple[int, int, tuple[str, ...], tuple[bytes, ...]]
TICK_S = 0.5
BEAT_S = 1.0
# How often a rank that waits asks again.
PATIENCE_S = 1.0
# Every so many messages one goes through the wire format and back.
WIRED = 16
# How much longer work takes while a process is slow.
SLOW = 30.0
TRACED = 40
# The trainer starts again from one of so many ledgers that it has kept.
LEDGERS = 4


@dataclass(frozen=True, slots=True)
class Settings:
    """What is simulated: sizes, delays in seconds, chances of faults, all per seed.

    broken: indexes that cannot be probed; unreadable: indexes that probe but do not decode;
    deadly: indexes whose decoding kills the worker process. crashes: (time, worker) at which a
    worker process dies; it is back `restart_s` later; hangs: those at which one works no more but
    lives. fixed_job: the balancer knows the job.
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
    deadly: frozenset[int] = frozenset()
    crashes: tuple[tuple[float, int], ...] = ()
    restart_s: float = 1.0
    hangs: tuple[tuple[float, int], ...] = ()
    decode_first: bool = False
    duplicate: float = 0.0
    epoch: int = 0
    epochs: int = 1
    at: Place = START
    limit_s: float = 10_000.0
    silence_s: float = 10.0
    fixed_job: bool = True
    faults: tuple[Fault, ...] = ()
    plan_with: Callable[[PlanConfig], Planner] = make_planner


@dataclass(slots=True)
class Outcome:
    """What happened: per rank the delivered (step, microbatch, keys, payload digests)."""

    delivered: dict[int, list[Given]] = field(default_factory=dict)
    # Beside each delivered microbatch: its weights and its holes.
    weights: dict[int, list[tuple[Weights, tuple[str, ...]]]] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    holes: list[str] = field(default_factory=list)
    trouble: str = ""
    stuck: bool = False
    most_held: int = 0
    seconds: float = 0.0
    trace: deque[str] = field(default_factory=lambda: deque(maxlen=TRACED))


class Simulation:
    """One run of a simulated cluster."""

    def __init__(self, settings: Settings, seed: int, traced: bool = False) -> None:
        self.settings = settings
        self.random = random.Random(seed)
        self.network = Network(self.random, settings.delay_s, settings.duplicate)
        self.outcome = Outcome()
        self.traced = traced
        self.workers: dict[bytes, WorkerProcess] = {}
        self.ranks: dict[bytes, RankProcess] = {}
        self.coordinator: Coordinator | None = None
        self._balancers = 0
        self._lives = 0
        self._over = False
        start = settings.epoch, settings.at.step, settings.at.microbatch
        self._ledgers: deque[tuple[Mark, tuple[int, Place, tuple[int, ...]]]] = deque(
            [(start, (settings.epoch, settings.at, ()))], LEDGERS
        )
        self._messages = 0
        self._incarnation = [0] * settings.workers
        # Per rank, (epoch, step, microbatch) of what was delivered, beside outcome.delivered.
        self._marks: dict[int, list[tuple[int, int, int]]] = {}

    def run(self) -> Outcome:
        """Run until every rank is at its end, or something makes that impossible."""
        settings, network = self.settings, self.network
        self._start_balancer()
        for slot in range(settings.workers):
            network.at(self._soon(), lambda slot=slot: self._start_worker(slot))  # type: ignore[misc]
        for time, slot in settings.crashes:
            network.at(time, lambda slot=slot: self._crash(slot, settings.restart_s))  # type: ignore[misc]
        for time, slot in settings.hangs:
            network.at(time, lambda slot=slot: self._hold_up("hang", f"worker {slot}", math.inf))  # type: ignore[misc]
        for fault in settings.faults:
            network.at(fault.at, lambda fault=fault: self._fault(fault))  # type: ignore[misc]
        for ranks in settings.processes:
            self.outcome.delivered |= {rank: [] for rank in ranks}
            self.outcome.weights |= {rank: [] for rank in ranks}
            self._marks |= {rank: [] for rank in ranks}
        self._start_trainer(settings.epoch, settings.at, ())
        while not self._over and network.now < settings.limit_s and network.step():
            pass
        if not self._over:
            left = sorted(rank.party for rank in self.ranks.values() if not rank.done)
            self.outcome.stuck = True
            self.outcome.trouble = f"stuck at {network.now:.1f} s: {left}"
        self.outcome.seconds = network.now
        return self.outcome

    def _soon(self) -> float:
        return self.random.random() * 2 * self.settings.delay_s

    def _trace(self, *words: object) -> None:
        if self.traced:
            self.outcome.trace.append(f"{self.network.now:8.3f} {' '.join(map(str, words))}"[:200])

    # --- faults

    def _fault(self, fault: Fault) -> None:
        self._trace("FAULT", fault)
        until = self.network.now + fault.lasts_s
        kind = fault.kind.partition(" ")[0]
        if kind in DISTURBANCES:
            self.network.disturb(fault.party, Disturbance(kind, fault.way, until))
        elif kind == "reset":
            self.network.sever(fault.party)
        elif kind == "crash":
            self._crash_party(fault)
        else:
            self._hold_up(kind, fault.party, until)

    def _hold_up(self, kind: str, party: str, until: float) -> None:
        for worker in self.workers.values():
            if worker.party == party and kind == "stop":
                worker.stopped_until = until
            elif worker.party == party and kind == "hang":
                worker.hung_until = until
            elif worker.party == party:
                worker.slow_until = until
        for rank in self.ranks.values():
            if rank.party == party and kind == "slow":
                rank.slow_until = until

    def _crash_party(self, fault: Fault) -> None:
        if fault.party == "balancer":
            self._crash_balancer(fault.lasts_s)
        elif fault.party == "trainer":
            self._crash_trainer(fault.lasts_s)
        else:
            self._crash(int(fault.party.split()[1]), fault.lasts_s)

    # --- the balancer

    def _start_balancer(self) -> None:
        settings = self.settings
        self.coordinator = Coordinator(
            settings.job if settings.fixed_job else None,
            settings.plan_with,
            settings.silence_s,
            self._balancers,
        )
        self._balancers += 1
        self._tick(self.coordinator)

    def _crash_balancer(self, down_s: float) -> None:
        if self.coordinator is None:
            return
        self.coordinator = None
        parties = {worker.party for worker in self.workers.values()}
        for party in parties | {rank.party for rank in self.ranks.values()}:
            self.network.sever(party)
        self.network.at(down_s, self._start_balancer)

    def _tick(self, coordinator: Coordinator) -> None:
        if coordinator is self.coordinator:
            self._emit(coordinator.tick(self.network.now))
            self.network.at(TICK_S, lambda: self._tick(coordinator))

    def _to_balancer(
        self, party: str, peer: bytes, message: Message, payloads: tuple[bytes, ...] = ()
    ) -> None:
        wired = self._wired(message, len(payloads))

        def arrive() -> None:
            if self.coordinator is not None:
                size = sum(map(len, payloads))
                if self.traced:
                    self._trace("balancer hears", peer.decode(), message)
                now = self.network.now
                self._emit(self.coordinator.handle(peer, wired, payloads, size, now))

        self.network.send(party, peer, "up", arrive)

    def _wired(self, message: Message, payloads: int) -> Message:
        self._messages += 1
        return message if self._messages % WIRED else decode(encode(message), payloads)

    def _emit(self, effects: list[Send]) -> None:
        coordinator = self.coordinator
        if coordinator is None:
            return
        if coordinator.run is not None:
            held = coordinator.run.delivery.held_bytes
            self.outcome.most_held = max(self.outcome.most_held, held)
        for effect in effects:
            self._send_down(coordinator, effect)

    def _send_down(self, coordinator: Coordinator, effect: Send) -> None:
        peer = effect.peer
        message = self._wired(effect.message, len(effect.payloads))
        known = self.workers.get(peer.removeprefix(b"beat-")) or self.ranks.get(peer)

        def arrive() -> None:
            if peer in self.ranks:
                self._rank_takes(self.ranks[peer], message, effect.payloads)
            elif peer.removeprefix(b"beat-") in self.workers:
                self._worker_takes(self.workers[peer.removeprefix(b"beat-")], message)
            elif coordinator is self.coordinator:
                self._emit(coordinator.gone(peer, message, self.network.now))

        if known is None:
            self.network.at(self._soon(), arrive)
        else:
            self.network.send(known.party, peer, "down", arrive)

    # --- workers

    def _start_worker(self, slot: int) -> None:
        worker = WorkerProcess(
            slot, self._incarnation[slot], self.settings.count, self._to_balancer
        )
        self.workers[worker.peer] = worker
        worker.hello()
        self._beat(worker)

    def _alive(self, worker: WorkerProcess) -> bool:
        return self.workers.get(worker.peer) is worker

    def _beat(self, worker: WorkerProcess) -> None:
        if self._alive(worker):
            if self.network.now >= worker.stopped_until:
                worker.say_alive()
            self.network.at(BEAT_S, lambda: self._beat(worker))

    def _crash(self, slot: int, down_s: float) -> None:
        for worker in [each for each in self.workers.values() if each.slot == slot]:
            self._trace("DIES", worker.peer.decode())
            del self.workers[worker.peer]
            self.network.sever(worker.party)
            self._incarnation[slot] += 1
            self.network.at(down_s, lambda: self._start_worker(slot))

    def _worker_takes(self, worker: WorkerProcess, message: Message) -> None:
        if not self._alive(worker):
            return
        late_s = worker.held_until - self.network.now
        if late_s > 0:
            self.network.at(late_s, lambda: self._worker_takes(worker, message))
            return
        if self.traced:
            self._trace(worker.peer.decode(), "hears", message)
        worker.takes(message)
        if isinstance(message, Lease) and not worker.busy:
            self._work(worker)

    def _work(self, worker: WorkerProcess) -> None:
        """Begin with the next task, if there is one."""
        task = worker.next_task()
        worker.busy = task is not None
        if task is not None:
            slow = SLOW if self.network.now < worker.slow_until else 1.0
            work_s = self.random.random() * 2 * self.settings.work_s * slow
            self.network.at(work_s, lambda: self._finish(worker, task))

    def _finish(self, worker: WorkerProcess, task: Task) -> None:
        if not self._alive(worker):
            return
        late_s = worker.held_until - self.network.now
        if late_s > 0:
            self.network.at(late_s, lambda: self._finish(worker, task))
            return
        if task.kind == "decode" and task.ref.index in self.settings.deadly:
            self._crash(worker.slot, self.settings.restart_s)
            return
        self._answer(worker, task)
        self._work(worker)

    def _answer(self, worker: WorkerProcess, task: Task) -> None:
        settings, index, ordinal = self.settings, task.ref.index, task.ref.ordinal
        key, cost = f"k{index}", settings.cost(index)
        if index in (settings.broken if task.kind == "probe" else settings.unreadable):
            worker.fail(task, key)
        elif task.kind == "probe" and not settings.decode_first:
            worker.measured(task, Probed(ordinal, key, cost, settings.payload_bytes))
        else:
            payload = (b"%d/%d " % (task.epoch, index)).ljust(settings.payload_bytes, b".")
            worker.decoded(task, key, cost, payload)

    # --- the trainer

    def _start_trainer(self, epoch: int, at: Place, holes: tuple[int, ...]) -> None:
        job = self.settings.job
        for ranks in self.settings.processes:
            session = RankSession(ranks, to_json(job), self.settings.prefetch, job.microbatches)
            process = RankProcess(ranks, self._lives, session, epoch, at, holes)
            self.ranks[process.peer] = process
            self._rank_says(process, [session.hello])
            self._wait(process)
        self._lives += 1

    def _crash_trainer(self, down_s: float) -> None:
        """Kill all ranks; they start again from one of the last ledgers."""
        if not self.ranks:
            return
        self._save()
        mark, (epoch, at, holes) = self.random.choice(self._ledgers)
        self._ledgers = deque([(mark, (epoch, at, holes))], LEDGERS)
        for rank, marks in self._marks.items():
            keep = sum(each < mark for each in marks)
            del marks[keep:], self.outcome.delivered[rank][keep:]
            del self.outcome.weights[rank][keep:]
        for process in self.ranks.values():
            self.network.sever(process.party)
        self.ranks.clear()
        self.network.at(down_s, lambda: self._start_trainer(epoch, at, holes))

    def _save(self) -> None:
        """Keep a ledger of where the rank is that is farthest behind."""
        if len(self.ranks) == len(self.settings.processes):
            behind = min(self.ranks.values(), key=lambda rank: rank.mark)
            self._ledgers.append((behind.mark, behind.ledger))

    def _rank_says(self, process: RankProcess, messages: list[Message]) -> None:
        for message in messages:
            self._to_balancer(process.party, process.peer, message)

    def _wait(self, process: RankProcess) -> None:
        """Ask again now and then, as long as the trainer waits in vain."""
        if self.ranks.get(process.peer) is not process or process.done:
            return
        silent = self.network.now - process.heard
        if not process.training and silent >= PATIENCE_S:
            self._rank_says(process, process.session.ask_again())
        self.network.at(PATIENCE_S, lambda: self._wait(process))

    def _rank_takes(
        self, process: RankProcess, message: Message, payloads: tuple[object, ...]
    ) -> None:
        if self.traced:
            self._trace(process.peer.decode(), "hears", message)
        process.heard = self.network.now
        process.session.handle(message, payloads)
        self._advance(process)

    def _advance(self, process: RankProcess) -> None:
        """Ask ahead; if the trainer is idle, take the next microbatch and train on it."""
        session = process.session
        if session.trouble:
            self.outcome.trouble = session.trouble
            self._over = True
        if session.trouble or process.done:
            return
        if not process.begun:
            if session.ready is None:
                return
            process.begun = True
            self._rank_says(process, session.begin(process.epoch, process.at, process.holes))
        if session.state == "running":
            self._rank_says(process, session.asks())
        if process.training:
            return
        taken = session.take()
        if taken is not None:
            self._train(process, *taken)
        elif session.at_end():
            self._end_epoch(process)

    def _end_epoch(self, process: RankProcess) -> None:
        process.epoch, process.at, process.holes = process.epoch + 1, START, ()
        if process.epoch == self.settings.epoch + self.settings.epochs:
            process.done = True
            self._over = all(rank.done for rank in self.ranks.values())
            return
        self._rank_says(process, process.session.begin(process.epoch, START))
        self._advance(process)

    def _train(self, process: RankProcess, arrival: Arrival, messages: list[Message]) -> None:
        batch, outcome = arrival.batch, self.outcome
        payloads = tuple(each for each in arrival.payloads if isinstance(each, bytes))
        given = (batch.step, batch.microbatch, tuple(item.key for item in batch.items), payloads)
        outcome.delivered[batch.rank].append(given)
        holes = tuple(hole.key for hole in batch.holes)
        outcome.weights[batch.rank].append((batch.weights, holes))
        self._marks[batch.rank].append((process.epoch, batch.step, batch.microbatch))
        outcome.holes += holes
        if batch.microbatch + 1 == batch.microbatches:
            outcome.places.append(batch.after)
            self._save()
        self._rank_says(process, messages)
        process.training = True
        slow = SLOW if self.network.now < process.slow_until else 1.0
        self.network.at(self.settings.train_s * slow, lambda: self._trained(process))

    def _trained(self, process: RankProcess) -> None:
        if self.ranks.get(process.peer) is process:
            process.training = False
            process.heard = self.network.now
            self._advance(process)
