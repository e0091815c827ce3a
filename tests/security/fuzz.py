"""The long run: mutated frames against decoding, sessions, codec and coordinator.

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

import msgpack

from counterpoise.balancer.protocol.messages import FROM_WORKER
from counterpoise.balancer.protocol.parts import EpochPosition
from counterpoise.balancer.protocol.rank_session import RankSession
from counterpoise.balancer.protocol.worker_session import WorkerSession
from counterpoise.balancer.transport.wire import WireError, decode, encode
from counterpoise.workers.codec.fields import CodecError
from counterpoise.workers.codec.frames import decode as decode_sample
from tests.security.hostile import Cluster, Mutator, Wired, corpus

NAMES = [b"hostile-%d" % n for n in range(4)]
MOST_STATE = 5_000


def state_size(coordinator):
    """How many things a coordinator remembers."""
    state = coordinator
    run = state.run
    tables = [
        state.peer_states, state.workers, state.ranks, state.postponed, state.leaving,
        state.requests._since,
    ]  # fmt: skip
    tables += [run.delivery.planned.samples, [*run.leases], run.delivery.steps] if run else []
    return sum(map(len, tables))


def are_registered(coordinator):
    """Whether exactly those who are in a worker's or a rank's state are known as such."""
    states = coordinator.peer_states.items()
    workers = {peer for peer, state in states if state.startswith("worker")}
    ranks = {peer for peer, state in states if state.startswith("rank")}
    return (workers, ranks) == (set(coordinator.workers), set(coordinator.ranks))


def attack(mutator, frames, on_refused=lambda: None):
    """Say frames under strange and honest names to one cluster after another; count them."""
    said, cluster = 0, None
    while said < frames:
        if cluster is None or cluster.trouble or said % 500 == 0:
            workers, honest_ranks = mutator.random.choice(((2, True), (2, False), (0, True)))
            cluster = Cluster(said, workers=workers, honest_ranks=honest_ranks)
            for _ in range(mutator.random.randrange(400)):
                cluster.step()
        header, payloads = mutator.frame()
        names = NAMES if mutator.random.random() < 0.7 else [*cluster.workers, *cluster.ranks]
        cluster.tell(Wired(mutator.random.choice(names), header, payloads))
        cluster.heard.clear()
        if mutator.random.random() < 0.3:
            cluster.step()
        said += 1
        assert state_size(cluster.coordinator) < MOST_STATE
        assert are_registered(cluster.coordinator)
    return said


def attack_sessions(mutator, frames):
    """Say frames to a rank's and a worker's session, and to what reads samples."""
    for number in range(frames):
        header, payloads = mutator.frame()
        if number % 200 == 0:
            worker, rank = WorkerSession(), RankSession((0,), "", 2, 1)
            rank.begin(0, EpochPosition(0, 0, 0, 0, ""))
        try:
            message = decode(header, len(payloads))
        except WireError:
            continue
        if isinstance(message, FROM_WORKER):
            read(getattr(message, "header", b""), payloads)
        worker.handle(message)
        worker.next_lease()
        rank.handle(message, payloads)
        rank.new_requests()
        if (arrival := rank.peek()) is not None:
            rank.release(arrival)
    return frames


def read(header, payloads):
    """Read a sample as a trainer does."""
    for payload in payloads:
        try:
            decode_sample(msgpack.unpackb(header), payload)
        except (CodecError, ValueError, msgpack.exceptions.UnpackException):
            continue


def to_peers(seed=0):
    """Return what workers and ranks hear in an undisturbed run."""
    heard = []

    class Tapped(Cluster):
        def _send(self, effects):
            heard.extend(Wired(e.peer, encode(e.message), tuple(e.payloads)) for e in effects)
            super()._send(effects)

    Tapped(seed).run()
    return heard


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
            said += attack_sessions(out_mutator, slice_ // 4)
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
