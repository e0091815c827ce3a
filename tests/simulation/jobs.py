"""Several jobs of one balancer and a fleet that works for all of them, on a simulated clock.

It stands for server/loop.py, workers/daemon/jobs.py and trainers that train in no time.
"""

import random
from collections import Counter
from collections.abc import Mapping

from counterpoise.balancer.coordinator.machine import Coordinator
from counterpoise.balancer.job.effects import Send
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import (
    Message,
    Welcome,
    WorkerHeartbeat,
    WorkerHello,
    WorkerReady,
)
from counterpoise.balancer.protocol.parts import (
    ELSEWHERE,
    IDLE,
    DecodedItem,
    Probed,
    WorkInProgress,
)
from counterpoise.balancer.protocol.payload_messages import DecodeDone, ProbeDone
from counterpoise.balancer.protocol.rank_session import RankSession
from counterpoise.balancer.protocol.worker_session import HEARTBEAT_S, SampleTask, WorkerSession
from counterpoise.balancer.server.jobs import JobRouter
from counterpoise.balancer.transport.naming import job_of
from counterpoise.workers.daemon.turns import DecodeTurns
from tests.simulation.rank import START
from tests.simulation.transport.network import SimulatedNetwork

JOB = JobSpec(plan=PlanConfig(1, 64, 1, ("tokens",), (None,), "isf", "greedy"))
DECODE_S, PROBE_S, DELAY_S = 0.02, 0.0002, 0.002
TICK_S = 0.1


class Fleet:
    """The whole: `decoded` has the job of each decoded sample, in order of time."""

    def __init__(self, weights: Mapping[str, float], workers: int, count: int, seed: int) -> None:
        self.network = SimulatedNetwork(random.Random(seed), DELAY_S)
        self.jobs = JobRouter(Coordinator)
        self.count = count
        self.decoded: list[str] = []
        self.ranks = {job: RankSession((0,), to_json(JOB), 4, 1) for job in weights}
        # JobRouter whose trainer asks for nothing any more.
        self.resting: set[str] = set()
        self.keys: dict[str, list[str]] = {job: [] for job in weights}
        self.workers = [FleetWorker(self, slot, weights) for slot in range(workers)]
        for job, rank in self.ranks.items():
            self.send(_rank(job), rank.hello)
        for worker in self.workers:  # which learn of the jobs, as they ask for them
            self.network.at(1.0, worker.start)
        self._tick()

    def run(self, decoded: int) -> Counter[str]:
        """Go on until so many more samples are decoded; return how many of each job."""
        before = len(self.decoded)
        while len(self.decoded) < before + decoded:
            assert self.network.step()
        return Counter(self.decoded[before:])

    def send(self, peer: bytes, message: Message, *payloads: bytes) -> None:
        """Send the balancer a message."""

        def arrive() -> None:
            self._emit(self.jobs.handle(peer, message, payloads, self.network.now))

        self.network.send(peer.decode(), peer, "up", arrive)

    def _tick(self) -> None:
        self._emit(self.jobs.tick(self.network.now))
        self.network.at(TICK_S, self._tick)

    def _emit(self, effects: list[Send]) -> None:
        for effect in effects:
            peer = effect.peer.decode()
            self.network.send(peer, effect.peer, "down", lambda effect=effect: self._arrive(effect))  # type: ignore[misc]

    def _arrive(self, effect: Send) -> None:
        job, slot = job_of(effect.peer), effect.peer.rpartition(b"-")[2]
        if slot != b"rank":
            self.workers[int(slot)].receive(job, effect.message)
            return
        rank = self.ranks[job]
        rank.handle(effect.message, effect.payloads)
        if rank.ready is not None and rank.run < 0:
            self._tell(job, rank.begin(0, START))
        while job not in self.resting and (arrival := rank.peek()) is not None:
            self.keys[job] += [item.key for item in arrival.batch.items]
            self._tell(job, rank.release(arrival))
        if job not in self.resting:
            self._tell(job, rank.new_requests())

    def _tell(self, job: str, messages: list[Message]) -> None:
        for message in messages:
            self.send(_rank(job), message)


def _rank(job: str) -> bytes:
    return f"{job}|the-rank".encode()


class FleetWorker:
    """A worker at all jobs; their samples take the same time."""

    def __init__(self, fleet: Fleet, slot: int, weights: Mapping[str, float]) -> None:
        self.fleet, self.slot = fleet, slot
        self.sessions = {job: WorkerSession() for job in weights}
        self.turns = DecodeTurns()
        for job, weight in weights.items():
            self.turns.add(job, weight)
        self._at_work: tuple[str, WorkInProgress] | None = None

    def start(self) -> None:
        """Say hello to all jobs."""
        for job in self.sessions:
            self.send(job, WorkerHello(f"w{self.slot}", 0, "host", self.slot))
        self._beat()

    def _beat(self) -> None:
        """Send heartbeats: a job that waits for its turn is not said to be idle."""
        for job, session in self.sessions.items():
            lease, ordinal = ELSEWHERE if session.tasks else IDLE
            if self._at_work is not None and self._at_work[0] == job:
                lease, ordinal = self._at_work[1]
            beat = WorkerHeartbeat(f"w{self.slot}", 0, lease=lease, ordinal=ordinal)
            self.fleet.send(f"{job}|beat-{self.slot}".encode(), beat)
        self.fleet.network.at(HEARTBEAT_S, self._beat)

    def send(self, job: str, message: Message, *payloads: bytes) -> None:
        """Send a job's coordinator a message."""
        self.fleet.send(f"{job}|w-{self.slot}".encode(), message, *payloads)

    def receive(self, job: str, message: Message) -> None:
        """Handle a message of a job's coordinator."""
        action = self.sessions[job].handle(message)
        if isinstance(action, Welcome):
            self.send(job, WorkerReady(self.fleet.count, job, action.number))
        self._go_on()

    def _go_on(self) -> None:
        hungry = [job for job, session in self.sessions.items() if session.tasks]
        if self._at_work is not None or not hungry:
            return
        job = self.turns.next(hungry)
        task = self.sessions[job].tasks.popleft()
        self._at_work = job, (task.lease, task.ref.ordinal)
        took_s = DECODE_S if task.kind == "decode" else PROBE_S
        if len(hungry) > 1:
            self.turns.charge(job, took_s)
        self.fleet.network.at(took_s, lambda: self._done(job, task))

    def _done(self, job: str, task: SampleTask) -> None:
        self._at_work = None
        key, ordinal = f"{job}-{task.ref.index}", task.ref.ordinal
        if task.kind == "probe":
            self.send(job, ProbeDone(task.lease, (Probed(ordinal, key, (1,), 1),)))
        else:
            self.fleet.decoded.append(job)
            item = DecodedItem(ordinal, key, (1,), b"", 0, 0)
            self.send(job, DecodeDone(task.lease, (item,)), key.encode())
        self._go_on()
