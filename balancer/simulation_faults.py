"""Faults of a simulated cluster: what can go wrong, drawn from a seed."""

import random
from dataclasses import dataclass

from .simulation_network import DISTURBANCES

TRAINER, BALANCER = "trainer", "balancer"
# reset: a connection breaks and is made again; stop: a process does nothing for a while (SIGSTOP);
# hang: it works on nothing, but says that it is alive.
KINDS = (
    *DISTURBANCES,
    "reset",
    "slow",
    "stop",
    "hang",
    "crash worker",
    "crash trainer",
    "crash balancer",
)
LONGEST_S = 4.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong at a time with a party, for so long; times in seconds."""

    at: float
    kind: str
    party: str
    lasts_s: float
    way: str = ""

    @property
    def over(self) -> float:
        """When it is over."""
        return self.at + self.lasts_s

    def __str__(self) -> str:
        way = f" {self.way}wards" if self.way else ""
        return f"{self.at:.2f} s: {self.kind} {self.party}{way} for {self.lasts_s:.2f} s"


def draw_faults(
    source: random.Random, number: int, workers: int, ranks: tuple[int, ...], within_s: float
) -> tuple[Fault, ...]:
    """Return `number` faults within the first `within_s` seconds, in time order.

    `ranks` are the first ranks of the trainer's processes.
    """
    drawn = [_draw(source, workers, ranks, within_s) for _ in range(number)]
    return tuple(sorted(drawn, key=lambda fault: fault.at))


def _draw(source: random.Random, workers: int, ranks: tuple[int, ...], within_s: float) -> Fault:
    kind = source.choice(KINDS)
    at, lasts_s = source.uniform(0.0, within_s), source.uniform(0.05, LONGEST_S)
    worker = f"worker {source.randrange(workers)}"
    rank = f"rank {source.choice(ranks)}"
    way = source.choice(("up", "down")) if kind == "cut" else ""
    if kind == "crash trainer":
        return Fault(at, kind, TRAINER, min(lasts_s, 1.0))
    if kind == "crash balancer":
        return Fault(at, kind, BALANCER, min(lasts_s, 2.0))
    if kind in ("crash worker", "stop", "hang"):
        return Fault(at, kind, worker, lasts_s)
    return Fault(at, kind, source.choice((worker, worker, rank)), lasts_s, way)
