"""Decides how many workers a job needs, from what its balancer reports once a second.

Workers are added where ranks have used up their lead because workers are busy: a rank whose next
microbatch is not ready will wait for it (ray#45331 scaled by decoded samples instead, which says
nothing of waits). They are let go where no rank was behind for a while and they have little to do,
since what is made ahead is bounded. Between the two limits nothing happens.
"""

import math
from dataclasses import dataclass, replace

# Ranks are behind, or not at all, for this share of the looks; workers are busy, or idle, for this
# share of their time. The aim is for those that stay.
BEHIND, NOT_BEHIND = 0.1, 0.02
BUSY, IDLE, AIM = 0.7, 0.5, 0.65
# A change shows its effect after some seconds. Too many workers cost less than ranks that wait.
GROW_AFTER_S, SHRINK_AFTER_S = 10.0, 60.0
# At most this part of the workers is added or let go at a time; a look counts with this weight.
PART, WEIGHT = 0.25, 0.1


@dataclass(frozen=True, slots=True)
class Look:
    """A report in short: workers that serve, and two shares of 1.

    behind: trainer processes whose next microbatch is not ready; busy: the workers' time at work.
    """

    workers: int
    behind: float
    busy: float


@dataclass(frozen=True, slots=True)
class FleetSize:
    """The number of workers there should be, since when, and how far ranks were behind lately.

    quiet_since: when ranks were last behind, or the number was changed.
    """

    workers: int
    since: float
    behind: float = 0.0
    quiet_since: float = 0.0


def next_scale(scale: FleetSize, look: Look, bounds: tuple[int, int], now: float) -> FleetSize:
    """Return how many workers there should be now, within bounds.

    >>> late = Look(workers=4, behind=1.0, busy=1.0)
    >>> next_scale(FleetSize(4, since=0.0, behind=0.5), late, (2, 64), now=20.0).workers
    5
    >>> next_scale(FleetSize(4, since=0.0, behind=0.5), late, (2, 64), now=5.0).workers
    4
    """
    smallest, largest = bounds
    seen = replace(scale, behind=(1 - WEIGHT) * scale.behind + WEIGHT * look.behind)
    if seen.behind > NOT_BEHIND:
        seen = replace(seen, quiet_since=now)
    workers, step = scale.workers, max(1, math.floor(PART * scale.workers))
    if look.workers < workers:  # what these will change is not known yet
        pass
    elif seen.behind > BEHIND and look.busy > BUSY and now - scale.since >= GROW_AFTER_S:
        workers += step
    elif look.busy < IDLE and now - seen.quiet_since >= SHRINK_AFTER_S:
        workers = max(workers - step, math.ceil(workers * look.busy / AIM))
    workers = min(max(workers, smallest), largest)
    return seen if workers == scale.workers else FleetSize(workers, now, seen.behind, now)
