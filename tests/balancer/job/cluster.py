"""A balancer's job in one process: workers and trainers on a network that loses and delays.

Everything follows from a seed. A worker is a PoolSession over a real PlannedReader, a trainer a
TrainerSession, which pulls frames from workers as it would over a socket of its own. Some workers
serve nowhere: what they keep is relayed.
"""

import heapq
import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from msgspec import structs

from counterpoise.balancer.job.effects import Send
from counterpoise.balancer.job.job import PlayedJob
from counterpoise.balancer.job.jobs import PlayedJobs
from counterpoise.balancer.job.messages import (
    JobOpened,
    JoinPool,
    OpenJob,
    PulledFrames,
    PullFrames,
    RelayedPiece,
    WorkersAt,
)
from counterpoise.balancer.parties.incoming import PieceToPull
from counterpoise.balancer.parties.trainer_session import TrainerSession
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.pool.messages import DoPart, FreeParts
from counterpoise.balancer.pool.worker_session import PoolSession
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import PeerRejected, UnknownPeer
from counterpoise.balancer.protocol.parts import EpochPosition, PayloadServer
from counterpoise.balancer.run.tasks import RunStart
from counterpoise.workers.codec.batches import decode_batch
from counterpoise.workers.planned.parts import do_part
from counterpoise.workers.planned.reader import PlannedReader
from counterpoise.workers.sources.interface import SampleError
from counterpoise.workers.sources.plain import as_source

START = EpochPosition(0, 0, 0, 0, "")
BEAT_S, TURN_S = 0.5, 0.02
# What a balancer begins with: seconds since 1970.
NOW = 1_800_000_000


class Texts:
    """Texts of given lengths; some cannot be read, and one may kill its worker."""

    def __init__(self, lengths: list[int], broken: frozenset[int] = frozenset()) -> None:
        self.lengths, self.broken = lengths, broken

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> str:
        if index in self.broken:
            raise SampleError(str(index), "it is torn")
        return f"{index}:" + "a" * self.lengths[index]


def joined(samples: list[str]) -> list[str]:
    """Be a collate function whose batch is not its list of samples."""
    return ["batch", *samples]


class Setting:
    """What a job is, and how unreliable its network: drawn from a seed."""

    def __init__(self, seed: int, faults: bool = True) -> None:
        chance = self.chance = random.Random(seed)
        self.seed = seed
        self.ranks = chance.choice([1, 2, 2, 3])
        self.sharers = chance.choice([1, 1, 1, 2])
        self.workers = chance.randint(1, 4)
        samples = chance.randint(12, 90)
        self.lengths = [chance.randint(1, 12) for _ in range(samples)]
        self.on_error = chance.choice(["raise", "skip", "skip"])
        torn = self.on_error == "skip" and chance.random() < 0.7
        self.broken = frozenset(chance.sample(range(samples), 3) if torn else ())
        self.killer = chance.randrange(samples) if torn and faults and chance.random() < 0.3 else -1
        if self.killer in self.broken:
            self.killer = -1
        self.collates = chance.random() < 0.7
        self.loses = chance.choice([0.0, 0.0, 0.02, 0.1]) if faults else 0.0
        self.kills = chance.randint(0, 3) if faults else 0
        self.restarts = faults and chance.random() < 0.3
        self.knows_costs = chance.random() < 0.5
        self.credit = chance.choice([1, 2, 4, 8])
        self.plan = PlanConfig(
            ranks=self.ranks, samples_per_step=6 * self.ranks, accumulate="auto",
            resources=("tokens",), budgets=(40,), grouping="balanced", seed=seed,
        )  # fmt: skip

    @property
    def job(self) -> JobSpec:
        return JobSpec(self.plan, on_error=self.on_error, lease_s=20.0)

    @property
    def layout(self) -> str:
        kind = "stacked" if self.collates else "samples"
        return json.dumps({"kind": kind, "takes_empty": True})

    def source(self) -> Any:
        return as_source(Texts(self.lengths, self.broken), cost_of)

    def reader(self) -> PlannedReader:
        source = self.source()
        return PlannedReader(
            source, source, ("tokens",), self.seed, joined, self.on_error == "skip"
        )


def cost_of(text: str) -> dict[str, int]:
    return {"tokens": len(text.partition(":")[2])}


class Cluster:
    """The whole job, and its network. delivered: what each process got, by rank and sharer."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.chance = setting, random.Random(setting.seed + 1)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._names = count(1)
        self.jobs = self._new_balancer(NOW)
        self.workers: dict[bytes, SimulatedWorker] = {}
        self.trainers = {
            (rank, sharer): SimulatedTrainer(self, rank, sharer)
            for rank in range(setting.ranks)
            for sharer in range(setting.sharers)
        }
        for _ in range(setting.workers):
            self.new_worker()
        self.turn_due = False
        self._tick()
        for _ in range(setting.kills):
            self.after(self.chance.uniform(0.1, 8), self._kill_a_worker)
        if setting.restarts:
            self.after(self.chance.uniform(0.5, 6), self._restart_balancer)

    @staticmethod
    def _new_balancer(generation: int) -> PlayedJobs:
        return PlayedJobs(generation, lambda _: (b"", b"secret"))

    @property
    def job(self) -> PlayedJob:
        return self.jobs.jobs["job"]

    # --- time and messages

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), action))

    def run(self, limit_s: float = 600.0) -> None:
        """Run until all trainers are at the end; AssertionError where that takes too long."""
        while not all(trainer.is_over for trainer in self.trainers.values()):
            self.now, _, action = heapq.heappop(self._events)
            assert self.now < limit_s, self.why_stuck()
            action()

    def end(self) -> None:
        """Have all trainers leave, and see that nothing is left of the job."""
        for trainer in self.trainers.values():
            trainer.session.leave()
        until = self.now + 30.0
        while self.now < until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        kept = {name: len(worker.kept) for name, worker in self.workers.items()}
        assert not any(kept.values()), f"kept: {kept}"
        if not self.jobs.jobs:
            return  # this balancer was started when all had left
        pool = self.job.pool
        assert (pool.kept_bytes, len(pool._tasks)) == (0, 0), "the pool keeps something"
        assert self.job.parties.is_empty

    def why_stuck(self) -> str:
        return "stuck: " + "; ".join(
            f"{key}: {len(t.delivered)} {t.session.failure}" for key, t in self.trainers.items()
        )

    def deliver(self, action: Callable[[], None]) -> None:
        """Have a message arrive: once, twice, late, or never."""
        draw = self.chance.random()
        if draw < self.setting.loses:
            return
        for _ in range(1 + (draw > 1 - self.setting.loses)):
            late = self.chance.random() < self.setting.loses
            self.after(self.chance.uniform(0.0005, 0.5 if late else 0.004), action)

    def _tick(self) -> None:
        self.turn()
        self.after(TURN_S, self._tick)

    def turn(self) -> None:
        if self.now >= self.jobs.next_deadline():
            self._send(self.jobs.tick(self.now))

    def _send(self, sends: list[Send]) -> None:
        trainers = {trainer.peer: trainer for trainer in self.trainers.values()}
        for peer, message, frames in map(structs.astuple, sends):
            receiver = self.workers.get(peer) or trainers.get(peer)
            if receiver is not None:
                self.deliver(partial(receiver.receive, message, frames))

    def handle(self, peer: bytes, message: Any, frames: Sequence[object] = ()) -> None:
        """Have a message go to the balancer that there is now."""
        jobs = self.jobs
        self.deliver(lambda: self._send(jobs.handle(peer, message, frames, self.now)))

    # --- processes

    def new_worker(self) -> None:
        worker = SimulatedWorker(self, f"job|w{next(self._names)}".encode())
        self.workers[worker.name] = worker
        worker.join()

    def _kill_a_worker(self) -> None:
        """Kill one that tries no sample by itself: that sample would be named for it."""
        known = self.job.pool.workers if self.jobs.jobs else {}
        tries = {
            name for name, w in known.items() if any(g.part.is_alone for g in w.givings.values())
        }
        if others := sorted(self.workers.keys() - tries):
            self.kill(self.chance.choice(others))

    def kill(self, name: bytes) -> None:
        """Kill a worker; another is started soon."""
        worker = self.workers.pop(name, None)
        if worker is not None:
            worker.is_dead = True
            jobs = self.jobs
            if self.chance.random() < 0.5:  # its connection breaks; else it is just silent
                self.after(0.05, lambda: jobs.unreachable(name, self.now))
            self.after(self.chance.uniform(0.1, 1), self.new_worker)

    def _restart_balancer(self) -> None:
        self.jobs = self._new_balancer(NOW + 1)


class SimulatedWorker:
    def __init__(self, cluster: Cluster, name: bytes) -> None:
        self.cluster, self.name = cluster, name
        self.session, self.reader = PoolSession(), cluster.setting.reader()
        self.kept: dict[int, Any] = {}
        self._last = 0
        self.is_dead = False
        self.slow = cluster.chance.choice([1, 1, 1, 5])
        self._is_busy = False
        self._unread: list[Any] = []
        address = cluster.chance.choice(["", name.decode(), name.decode()])
        most_bytes = cluster.chance.choice([1, 300, 1 << 40])
        self.hello = JoinPool(name.decode(), 1, "", address, b"", most_bytes)
        self._is_open = False
        self._beat()

    def join(self) -> None:
        """Say hello, again until the job comes."""
        if not (self.is_dead or self._is_open):
            self.cluster.handle(self.name, self.hello)
            self.cluster.after(5.0, self.join)

    def _opened(self, number: int) -> JobOpened:
        setting, source = self.cluster.setting, self.cluster.setting.source()
        columns: tuple[bytes, ...] = ()
        if setting.knows_costs and not setting.broken and setting.killer < 0:
            texts = [cost_of(str(source[n]))["tokens"] for n in range(len(source))]
            columns = (np.array(texts, np.int64).tobytes(),)
        return JobOpened(number, len(source), "print", columns, loads_first=False, names=True)

    def receive(self, message: Any, _: object) -> None:
        assert not isinstance(message, PeerRejected), message
        self._unread.append(message)
        self._read()

    def _read(self) -> None:
        """Take messages between parts, as a worker does: none begins anew while it works."""
        while self._unread and not self._is_busy:
            self._take(self._unread.pop(0))

    def _take(self, message: Any) -> None:
        match message:
            case OpenJob():
                self._is_open = True
                self.cluster.handle(self.name, self._opened(message.number))
            case UnknownPeer():
                self.session.reset()
                self._is_open = False
                self.join()
            case PullFrames() if self._is_open:
                frames = self.kept.get(message.serial, ())
                self.cluster.handle(self.name, PulledFrames(message.serial, len(frames)), frames)
            case DoPart() | FreeParts():
                self.session.take(message)
                self._work()

    def _beat(self) -> None:
        if not self.is_dead:
            self._flush()
            self.cluster.handle(self.name, self.session.beat())
            self.cluster.after(BEAT_S, self._beat)

    def _work(self) -> None:
        self._flush()
        if self._is_busy or self.is_dead:
            return
        part = self.session.next_part()
        if part is None:
            return
        self._is_busy = True
        each_s = self.slow * self.cluster.chance.uniform(0.005, 0.03)
        took_s = each_s * max(1, len(part.task) - 3)
        self.cluster.after(took_s, lambda: self._done(part, took_s))

    def _done(self, part: DoPart, took_s: float) -> None:
        if self.is_dead:
            return
        if self.cluster.setting.killer in part.task[3:]:
            self.cluster.kill(self.name)
            return
        self._last += 1
        answer, frames = do_part(self.reader, part, self._last)
        if frames:
            self.kept[self._last] = [bytes(memoryview(each).cast("B")) for each in frames]
        self.session.finish(structs.replace(answer, took_us=round(1e6 * took_s)))
        self._is_busy = False
        self._read()
        self._work()

    def _flush(self) -> None:
        while self.session.freed:
            self.kept.pop(self.session.freed.pop(), None)
        for message in self.session.take_messages():
            self.cluster.handle(self.name, message)


class SimulatedTrainer:
    def __init__(self, cluster: Cluster, rank: int, sharer: int) -> None:
        setting = cluster.setting
        self.cluster, self.peer = cluster, f"job|t{rank}.{sharer}".encode()
        self.session = TrainerSession(
            (rank,), to_json(setting.job), setting.layout, setting.credit, sharer,
            setting.sharers, name=f"trainer {rank}.{sharer}",
        )  # fmt: skip
        self.servers: dict[int, PayloadServer] = {}
        self.delivered: list[tuple[Any, Any]] = []
        self.session.begin(RunStart(0, START))
        self._takes_s = cluster.chance.uniform(0.0, 0.05)
        self._beat()
        cluster.after(0.01, self._step)

    @property
    def is_over(self) -> bool:
        return self.session.is_at_end or bool(self.session.failure)

    def receive(self, message: Any, frames: Any) -> None:
        match message:
            case WorkersAt():
                self.servers.update({server.token: server for server in message.servers})
            case RelayedPiece(_, rank, index, version, piece):
                self.session.note_pulled(rank, index, version, piece, frames)
            case _:
                self.session.receive(message)
        self._flush()

    def _beat(self) -> None:
        for message in self.session.beat():
            self.cluster.handle(self.peer, message)
        self.cluster.after(BEAT_S, self._beat)

    def _flush(self, waits: bool = False) -> None:
        for pull in self.session.take_pulls():
            self._pull(pull)
        for message in self.session.take_messages(waits):
            self.cluster.handle(self.peer, message)

    def _pull(self, pull: PieceToPull) -> None:
        cluster, token = self.cluster, pull.piece.token
        server = self.servers.get(token)
        if server is None or not server.address:
            self.session.note_lost(pull, "its worker is not known, or serves nowhere")
            return
        name = server.address.encode()

        def arrive() -> None:
            worker = cluster.workers.get(name)
            frames = None if worker is None else worker.kept.get(pull.piece.serial)
            if frames is None:
                self.session.note_lost(pull, "" if worker is not None else "it is gone")
            else:
                self.session.note_pulled(pull.rank, pull.index, pull.version, pull.number, frames)
            self._flush(waits=True)

        cluster.after(cluster.chance.uniform(0.0005, 0.02), arrive)

    def _step(self) -> None:
        batch = self.session.peek()
        if batch is not None:
            self.delivered.append((batch.give, self._batch_of(batch)))
            self.session.release(batch)
        self._flush(waits=True)
        if not self.is_over:
            self.cluster.after(0.002 + self._takes_s, self._step)

    def _batch_of(self, batch: Any) -> Any:
        pieces = [decode_batch(batch.frames[n]) for n in range(len(batch.give.pieces))]
        if batch.give.is_batch:
            return pieces[0]
        placed = {
            place: sample
            for given, samples in zip(batch.give.pieces, pieces, strict=True)
            for place, sample in zip(given.places, samples, strict=False)
        }
        return joined([placed[place] for place in sorted(placed)])
