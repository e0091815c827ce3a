"""Workers that answer at once, and trainers that take at once: the product's sessions, no data.

A base class: who drives a balancer says how messages come to it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from counterpoise.balancer.job.messages import JobOpened, JoinPool, OpenJob, WorkersAt
from counterpoise.balancer.job.told_source import pack_column
from counterpoise.balancer.parties.trainer_session import TrainerSession
from counterpoise.balancer.planning.problem.balance import Balance
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.pool.messages import DoPart, PartMade
from counterpoise.balancer.pool.worker_session import PoolSession
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.messages import JobList, PeerRejected
from counterpoise.balancer.protocol.parts import EpochPosition
from counterpoise.balancer.run.tasks import TASK_HEAD, RunStart

LAYOUT = '{"kind": "stacked", "takes_empty": true}'
SAMPLES_PER_STEP, MICROBATCH = 1920, 16
WORKERS_PER_RANK = 2
# Microbatches of a rank that are under way.
CREDIT = 2
# What a worker says that a sample took, and how large its microbatches are.
SAMPLE_US, BATCH_BYTES = 200, 16 << 10
# Nobody connects to it: pulls are nothing to a balancer.
ADDRESS = "tcp://127.0.0.1:9"


class StandIns(ABC):
    """All peers of a balancer with one job; delivered: samples that trainers have taken.

    samples: of the source, all with known costs. steps: that a run plays of it.
    """

    def __init__(self, ranks: int, steps: int, samples: int) -> None:
        plan = PlanConfig.from_balance(
            Balance(
                "isf", partition="greedy",
                accumulate=max(1, -(-SAMPLES_PER_STEP // ranks) // MICROBATCH),
            ),
            ranks=ranks, resources=("tokens",), samples_per_step=SAMPLES_PER_STEP,
            batch_size=None, drop_last=True, empty_microbatches=True,
        )  # fmt: skip
        job = to_json(JobSpec(plan=plan, source={"pattern": "*.tar"}, buffer_bytes=1 << 33))
        self.trainers = {
            b"job|r%d" % rank: TrainerSession((rank,), job, LAYOUT, CREDIT) for rank in range(ranks)
        }
        self.workers = {b"job|w%d" % n: PoolSession() for n in range(WORKERS_PER_RANK * ranks)}
        self.steps, self.delivered = steps, 0
        self.costs = np.random.default_rng(0).integers(1, 2000, samples)
        self._serial = self._epoch = 0
        self._opened: set[bytes] = set()
        self._touched: dict[bytes, None] = {}

    @abstractmethod
    def post(self, peer: bytes, messages: Sequence[Any]) -> None:
        """Send messages of a peer to the balancer."""

    @abstractmethod
    def turn(self) -> None:
        """Have the balancer and the peers do what there is to do."""

    @abstractmethod
    def cpu_s(self) -> float:
        """Return the CPU seconds that the balancer has used."""

    def run(self) -> float:
        """Play two runs; return the balancer's CPU microseconds a sample of the second."""
        self.join()
        while len(self._opened) < len(self.workers) or not all(
            trainer.ready for trainer in self.trainers.values()
        ):
            self.turn()
        self._play()  # kernels are loaded, and buffers grow
        began, had = self.cpu_s(), self.delivered
        self._play()
        return 1e6 * (self.cpu_s() - began) / (self.delivered - had)

    def join(self) -> None:
        """Have all peers that the balancer does not know yet say hello."""
        for peer, trainer in self.trainers.items():
            if trainer.ready is None:
                self.post(peer, trainer.beat())
        for peer in self.workers.keys() - self._opened:
            name = peer.decode()
            self.post(peer, [JoinPool(name, 1, "", ADDRESS, b"", 1 << 40)])

    def _play(self) -> None:
        for trainer in self.trainers.values():
            trainer.begin(RunStart(self._epoch, EpochPosition(0, 0, 0, 0, "")))
        self._epoch += 1
        self._touched.update(dict.fromkeys(self.trainers))
        until = self.delivered + self.steps * SAMPLES_PER_STEP
        while self.delivered < until:
            self.answer()
            self.turn()

    def take(self, peer: bytes, message: Any) -> None:
        """Take a message of the balancer; `answer` does what it asks for."""
        if isinstance(message, PeerRejected):
            raise RuntimeError(f"{peer!r} was refused: {message.reason}")
        if (trainer := self.trainers.get(peer)) is not None:
            if not isinstance(message, WorkersAt):
                trainer.receive(message)
            if trainer.failure:
                raise RuntimeError(trainer.failure)
        elif isinstance(message, OpenJob):
            self._opened.add(peer)
            columns = (pack_column(self.costs),)
            opened = JobOpened(message.number, len(self.costs), "data", columns, False, True)
            self.post(peer, [opened])
        elif not isinstance(message, JobList):
            self.workers[peer].take(message)
        self._touched[peer] = None

    def answer(self) -> None:
        """Have peers that were told something do it, at once, and say so."""
        touched, self._touched = self._touched, {}
        for peer in touched:
            if (trainer := self.trainers.get(peer)) is not None:
                self._take_batches(trainer)
                messages: Sequence[Any] = trainer.take_messages(waits=True)
            else:
                session = self.workers[peer]
                while (part := session.next_part()) is not None:
                    session.finish(self._made(part))
                session.freed.clear()
                messages = session.take_messages()
            if messages:
                self.post(peer, messages)

    def _made(self, part: DoPart) -> PartMade:
        self._serial += 1
        asked, indexes = part.task[TASK_HEAD - 1], part.task[TASK_HEAD:]  # see Load
        names = tuple(f"sample {index}" for index in indexes) if asked & 1 else ()
        costs = tuple((int(self.costs[index]),) for index in indexes) if asked & 2 else ()
        return PartMade(
            part.number, self._serial, BATCH_BYTES, (BATCH_BYTES,), names, (), costs, (), -1,
            BATCH_BYTES, SAMPLE_US * len(indexes),
        )  # fmt: skip

    def _take_batches(self, trainer: TrainerSession) -> None:
        for pull in trainer.take_pulls():
            trainer.note_pulled(pull.rank, pull.index, pull.version, pull.number, b"")
        while (batch := trainer.peek()) is not None:
            self.delivered += len(batch.give.facts.keys)
            trainer.release(batch)
