"""CPU time of a balancer that plays all ranks, without sockets: the jobs of balancer/job driven.

Workers answer at once and trainers take at once, as sessions without frames; counted is what the
jobs take in (`handle`) and do (`tick`) once all have come, all planning of the epoch too.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from counterpoise.balancer.job.effects import Send
from counterpoise.balancer.job.jobs import PlayedJobs
from counterpoise.balancer.job.messages import JobOpened, JoinPool, OpenJob, WorkersAt
from counterpoise.balancer.parties.trainer_session import TrainerSession
from counterpoise.balancer.planning.problem.balance import Balance
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.pool.messages import DoPart, PartMade
from counterpoise.balancer.pool.worker_session import PoolSession
from counterpoise.balancer.protocol.job_spec import JobSpec, to_json
from counterpoise.balancer.protocol.parts import EpochPosition
from counterpoise.balancer.run.arrivals import RunStart
from counterpoise.balancer.run.tasks import TASK_HEAD

LAYOUT = '{"kind": "stacked", "takes_empty": true}'
TURN_S = 0.001
CREDIT = 2


class Played:
    """One epoch of a job; us_per_sample: CPU time of the jobs."""

    def __init__(
        self, ranks: int, workers: int, steps: int, samples_per_step: int = 1920,
        microbatch: int = 16, nbytes: int = 16 << 10,
    ) -> None:  # fmt: skip
        accumulate = max(1, -(-samples_per_step // ranks) // microbatch)
        plan = PlanConfig.from_balance(
            Balance("isf", partition="greedy", accumulate=accumulate), ranks=ranks,
            resources=("tokens",), samples_per_step=samples_per_step, batch_size=None,
            drop_last=True, empty_microbatches=True,
        )  # fmt: skip
        self.job = JobSpec(plan=plan, source={"pattern": "*.tar"}, buffer_bytes=1 << 33)
        self.jobs = PlayedJobs(1, lambda _: (b"", b""))
        self.count, self.nbytes, self.serial = steps * samples_per_step, nbytes, 0
        self.workers = {b"job|w%d" % number: PoolSession() for number in range(workers)}
        self.trainers = {
            b"job|r%d" % rank: TrainerSession((rank,), to_json(self.job), LAYOUT, CREDIT)
            for rank in range(ranks)
        }
        self.now, self.cpu_s, self.delivered, self.messages = 0.0, 0.0, 0, 0
        self.us_per_sample = 0.0
        self.costs = np.random.default_rng(0).integers(1, 2000, self.count)

    def run(self) -> None:
        """Play an epoch."""
        for peer, trainer in self.trainers.items():
            trainer.begin(RunStart(0, EpochPosition(0, 0, 0, 0, "")))
            self._say(peer, trainer.take_messages())
        for peer in self.workers:
            self._say(peer, [JoinPool(peer.decode(), 1, "host", 0, "", "", "tcp://127.0.0.1:9",
                                      b"", 1 << 40)])  # fmt: skip
        joined_s = self.cpu_s
        while self.delivered < self.count:
            for peer, trainer in self.trainers.items():
                if messages := trainer.take_messages(waits=True):
                    self._say(peer, messages)
            began = time.process_time()
            sends = self.jobs.tick(self.now)
            self.cpu_s += time.process_time() - began
            self._deliver(sends)
            self.now += TURN_S
        self.us_per_sample = 1e6 * (self.cpu_s - joined_s) / self.count

    def _say(self, peer: bytes, messages: Sequence[Any]) -> None:
        self.messages += len(messages)
        began = time.process_time()
        sends = [s for each in messages for s in self.jobs.handle(peer, each, (), self.now)]
        self.cpu_s += time.process_time() - began
        self._deliver(sends)

    def _deliver(self, sends: Sequence[Send]) -> None:
        """Have peers do what they are told."""
        busy: dict[bytes, PoolSession] = {}
        for send in sends:
            self.messages += 1
            if (trainer := self.trainers.get(send.peer)) is not None:
                if not isinstance(send.message, WorkersAt):
                    trainer.receive(send.message)  # type: ignore[arg-type]
                self._take(trainer)
            elif isinstance(send.message, OpenJob):
                opened = JobOpened(send.message.number, self.count, "data",
                                   (self.costs.tobytes(),), False, True)  # fmt: skip
                self._say(send.peer, [opened])
            else:
                self.workers[send.peer].take(send.message)  # type: ignore[arg-type]
                busy[send.peer] = self.workers[send.peer]
        for peer, session in busy.items():
            while (part := session.next_part()) is not None:
                session.finish(self._made(part))
            session.freed.clear()
            if messages := session.take_messages():
                self._say(peer, messages)

    def _made(self, part: DoPart) -> PartMade:
        self.serial += 1
        indexes = part.task[TASK_HEAD:]
        names = tuple(f"sample {index}" for index in indexes)
        return PartMade(part.number, self.serial, self.nbytes, (self.nbytes,), names, (),
                        tuple((int(self.costs[i]),) for i in indexes), (), -1, -1,
                        200 * len(names))  # fmt: skip

    def _take(self, trainer: TrainerSession) -> None:
        for pull in trainer.take_pulls():
            trainer.note_pulled(pull.rank, pull.index, pull.version, pull.number, b"")
        while (batch := trainer.peek()) is not None:
            self.delivered += len(batch.give.facts.keys)
            trainer.release(batch)
