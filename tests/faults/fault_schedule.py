"""Injects the faults of one epoch, drawn from a seed: kills, a stop, and network cuts."""

import random
import time
from collections.abc import Callable

from .cluster import PEERS, PROCESSES, Cluster
from .epoch import STEPS
from .proxy import WAYS
from .trials import Trials

KILLS, STOPS, CUTS = 5, 1, 2
# The longest time that a process is stopped, a peer is cut off, and a killed process is away.
LONGEST_STOP_S = 3.5
LONGEST_CUT_S = 1.0
LONGEST_DOWN_S = 0.4
# The latest that a fault comes after the step it is drawn for.
LATE_S = 0.1


def inject_faults(cluster: Cluster, source: random.Random, trials: Trials, limit_s: float) -> None:
    """Inject the faults of one epoch at steps drawn from `source`, within `limit_s`."""
    kinds = [*["kill"] * KILLS, *["stop"] * STOPS, *["cut"] * CUTS]
    source.shuffle(kinds)
    moments = sorted(source.randint(0, STEPS - 3) for _ in kinds)
    deadline = time.monotonic() + limit_s
    for kind, at in zip(kinds, moments, strict=True):
        late = source.uniform(0.0, LATE_S)
        cluster.wait(lambda at=at: cluster.over() or cluster.steps_noted() >= at, deadline)  # type: ignore[misc]
        cluster.network.pump(late)
        if cluster.over() or time.monotonic() > deadline:
            return
        FAULTS[kind](cluster, source, trials)


def _kill(cluster: Cluster, source: random.Random, trials: Trials) -> None:
    cluster.kill(source.choice(PROCESSES), source.uniform(0.0, LONGEST_DOWN_S))
    trials.kills += 1


def _stop(cluster: Cluster, source: random.Random, trials: Trials) -> None:
    cluster.hold(source.choice(PROCESSES), source.uniform(0.1, LONGEST_STOP_S))
    trials.stops += 1


def _cut(cluster: Cluster, source: random.Random, trials: Trials) -> None:
    peer, seconds = source.choice(PEERS), source.uniform(0.0, LONGEST_CUT_S)
    if source.random() < 0.5:
        cluster.cut(peer, seconds)
    else:
        cluster.delay(peer, source.choice(WAYS), seconds, lost=source.random() < 0.5)
    trials.cuts += 1


Fault = Callable[[Cluster, random.Random, Trials], None]
FAULTS: dict[str, Fault] = {"kill": _kill, "stop": _stop, "cut": _cut}
