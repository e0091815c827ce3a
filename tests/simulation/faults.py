"""The faults of a simulated cluster, drawn from a seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation.transport.network import DISTURBANCES

TRAINER, BALANCER, ALL_WORKERS = "trainer", "balancer", "all workers"
# Between the names of several parties.
PARTIES = " & "
# reset: a connection breaks and is made again; stop: a process does nothing for a while (SIGSTOP);
# hang: it stops its work, but sends heartbeats; replace: it stops, counts as dead, and
# finds a successor when it goes on; disk full: nothing can be written to a party's disk.
KINDS = (
    *DISTURBANCES,
    "reset",
    "slow",
    "stop",
    "hang",
    "replace",
    "disk full",
    "crash worker",
    "crash trainer",
    "crash balancer",
)
LONGEST_S = 4.0
# Kinds that are only drawn where a variant asks for them: longer than a lease, one worker or all
# hang, or one worker is slow.
LONG_HANG, LONG_SLOW = "long hang", "long slow"
LONG_S = 5.5, 14.0
# A process of the trainer trains slowly. Some die, and the trainer is restarted before the others
# are told of it.
SLOW_RANK, RANKS_DIE = "slow rank", "ranks die"
MOST_DIE, RESTARTED_S = 3, 3.0
# A process of the trainer is cut off, and the balancer is told that it cannot be reached.
CUT_OFF, CUT_OFF_S = "cut off", 1.5


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one party (a process, or all workers); times in seconds."""

    at: float
    kind: str
    party: str
    lasts_s: float
    way: str = ""

    @property
    def end(self) -> float:
        """The time at which it ends."""
        return self.at + self.lasts_s

    def hits(self, party: str) -> bool:
        """Return whether a worker or a rank is hit."""
        return self.party == party or (self.party == ALL_WORKERS and party.startswith("worker"))

    def __str__(self) -> str:
        way = f" {self.way}wards" if self.way else ""
        return f"{self.at:.2f} s: {self.kind} {self.party}{way} for {self.lasts_s:.2f} s"


def draw_faults(
    source: random.Random,
    number: int,
    workers: int,
    trainer: Sequence[str],
    within_s: float,
    kinds: Sequence[str] = (),
) -> tuple[Fault, ...]:
    """Return `number` faults within the first `within_s` seconds, in time order.

    `trainer` has the names of the trainer's processes; `kinds` are those of the first faults, all
    others are drawn.
    """
    every = [*kinds, *[source.choice(KINDS) for _ in range(number - len(kinds))]]
    drawn = [_draw(kind, source, workers, trainer, within_s) for kind in every]
    return tuple(sorted(drawn, key=lambda fault: fault.at))


def _draw(
    kind: str, source: random.Random, workers: int, trainer: Sequence[str], within_s: float
) -> Fault:
    # All are drawn whether this kind needs them or not, so that a seed's later faults stay the same
    # when a kind is changed.
    at, lasts_s = source.uniform(0.0, within_s), source.uniform(0.05, LONGEST_S)
    worker = f"worker {source.randrange(workers)}"
    rank = source.choice(trainer)
    way = source.choice(("up", "down")) if kind == "cut" else ""
    if kind == "crash trainer":
        return Fault(at, kind, TRAINER, min(lasts_s, 1.0))
    if kind == "crash balancer":
        return Fault(at, kind, BALANCER, min(lasts_s, 2.0))
    if kind == "disk full":
        return Fault(at, kind, source.choice((worker, TRAINER)), lasts_s)
    if kind == RANKS_DIE:
        parties = source.sample(trainer, min(MOST_DIE, len(trainer)))
        return Fault(at, kind, PARTIES.join(parties), min(lasts_s, RESTARTED_S))
    if kind == CUT_OFF:
        return Fault(at, kind, rank, min(lasts_s, CUT_OFF_S))
    if kind == SLOW_RANK:
        return Fault(at, "slow", rank, lasts_s)
    if kind == LONG_HANG:
        party = source.choice((ALL_WORKERS, worker))
        return Fault(at, "hang", party, source.uniform(*LONG_S))
    if kind == LONG_SLOW:
        return Fault(at, "slow", worker, source.uniform(*LONG_S))
    if kind in ("crash worker", "stop", "hang", "replace"):
        return Fault(at, kind, worker, lasts_s)
    return Fault(at, kind, source.choice((worker, worker, rank)), lasts_s, way)
