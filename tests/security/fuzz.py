"""The long run: mutated frames against decoding, a balancer, a worker and a trainer.

    PYTHONPATH=.venv/typing .venv/bin/python -m tests.security.fuzz --frames 1000000 --seed 1

Prints what was done; any exception is printed with the seed and the number of the frame, and the
exit status is 1. Memory is read before and after: it must not grow with the number of frames.
"""

import argparse
import gc
import resource
import sys
import time
import traceback
from types import SimpleNamespace
from typing import Any

from counterpoise.balancer.parties.messages import FROM_TRAINER
from counterpoise.balancer.parties.trainer_session import TrainerSession
from counterpoise.balancer.protocol.job_spec import to_json
from counterpoise.balancer.protocol.status_messages import GetStatus
from counterpoise.balancer.run.arrivals import RunStart
from counterpoise.balancer.transport.wire import WireError, decode, encode
from counterpoise.loader.remote.batch_reader import BatchReader
from counterpoise.loader.remote.inbox import Inbox
from tests.balancer.job.cluster import START
from tests.security.hostile import JOB, LAYOUT, Cluster, Mutator, Wired, corpus
from tests.workers.daemon.scripted import ScriptedWorker

NAMES = [b"job|hostile-%d" % n for n in range(3)] + [b"other|hostile"]
MOST_STATE = 5_000


def state_size(jobs):
    """How many things a balancer's jobs remember."""
    return sum(_size_of(job) for job in jobs.jobs.values())


def _size_of(job):
    parties, pool, admission = job.parties, job.pool, job.admission
    seats = parties._seats
    tables = [
        seats.peers, seats.gone, seats._waiting, parties._leaving,
        parties._labels._steps, parties.notices, parties.changes,
        admission.workers, admission._named, admission.servers, admission.out,
        job.relay._questions, pool._tasks, pool._keepers, pool.deaths, pool.rubbish,
    ]  # fmt: skip
    for worker in pool.workers.values():
        tables += [worker.given, worker.kept, worker.freeing, worker.dropping]
    return sum(map(len, tables))


def check_reports(jobs, now):
    """Whatever peers have told, what is reported of it can be sent."""
    for name in jobs.jobs:
        (sent,) = jobs.handle(f"{name}|doctor".encode(), GetStatus(), (), now)
        header = encode(sent.message)
        assert len(header) < 1 << 20
        assert decode(header, 0) == sent.message


def attack(mutator, frames):
    """Say frames under strange and honest names to one cluster after another; count them."""
    said, cluster = 0, None
    while said < frames:
        if cluster is None or cluster.trouble or said % 500 == 0:
            workers, ranks = mutator.random.choice(((2, True), (2, False), (0, True)))
            cluster = Cluster(said, workers=workers, ranks=ranks)
            for _ in range(mutator.random.randrange(400)):
                cluster.step()
        header, payloads = mutator.frame()
        names = NAMES if mutator.random.random() < 0.5 else [*cluster.peers]
        cluster.tell(Wired(mutator.random.choice(names or NAMES), header, payloads))
        cluster.forget_said()
        if mutator.random.random() < 0.3:
            cluster.step()
        said += 1
        assert state_size(cluster.jobs) < MOST_STATE
        if said % 50 == 0:
            check_reports(cluster.jobs, cluster.now)
    return said


class Listeners:
    """A worker and a trainer, which hear what a test says to both."""

    def __init__(self):
        self.worker = ScriptedWorker()
        self.worker.open()
        session = TrainerSession((0,), to_json(JOB), LAYOUT, 2)
        batches: Any = SimpleNamespace(fields=None)
        reader = BatchReader(JOB, batches, True)
        self.trainer = Inbox(session, reader, "trainer")
        session.begin(RunStart(0, START))

    def hear(self, header, payloads):
        """Say one message to both; each answers what it can."""
        try:
            message = decode(header, len(payloads))
        except WireError:
            return
        self.worker.hear(message)
        if isinstance(message, FROM_TRAINER):
            return
        self.trainer.handle(message, payloads)
        session = self.trainer.session
        for pull in session.take_pulls():
            if (batch := session.lacks(pull.rank, pull.index, pull.version)) is not None:
                self.trainer.take_piece(pull, batch.give, payloads, "a worker")
        for said in (*self.trainer.take_messages(waits=True), *session.beat(asks=True)):
            encode(said)
        if (batch := session.peek()) is not None:
            session.release(batch)


def attack_listeners(mutator, frames):
    """Say frames to a worker and a trainer."""
    for number in range(frames):
        if number % 200 == 0:
            listeners = Listeners()
        listeners.hear(*mutator.frame())
    return frames


def to_peers(seed=0):
    """Return what workers and trainers hear in an undisturbed run."""
    cluster = Cluster(seed)
    cluster.run()
    return cluster.told


def resident_mb():
    """Return this process' memory in MB, after a collection."""
    gc.collect()
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    in_mutator = Mutator(corpus(), chosen.seed)
    out_mutator = Mutator(to_peers(), chosen.seed)
    started, sizes, said = time.monotonic(), [], 0
    slice_ = max(1000, chosen.frames // 10)
    try:
        while said < chosen.frames:
            said += attack(in_mutator, slice_ * 3 // 4)
            said += attack_listeners(out_mutator, slice_ // 4)
            sizes.append(resident_mb())
            print(
                f"{said} frames, {time.monotonic() - started:.0f} s, {sizes[-1]:.1f} MB", flush=True
            )
    except Exception:
        traceback.print_exc()
        print(f"seed {chosen.seed}, after {said} frames", file=sys.stderr)
        return 1
    print(f"{said} frames, no crash; {sizes[0]:.1f} MB after a tenth, {sizes[-1]:.1f} at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
