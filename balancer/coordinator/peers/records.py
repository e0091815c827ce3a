"""The coordinator's record of each worker and each trainer process (a *rank peer*).

All times are in seconds on the coordinator's clock.
"""

import math

import msgspec

from ...protocol.clock_offset import NOT_MEASURED, Offset
from ...protocol.messages import PayloadServer, RankHello, StartRun, WorkerHello
from ...protocol.parts import NO_PLACE, NOT_REPORTED, WorkInProgress
from ..delivery.planned_steps import BEGINNING, Position, RankProgress
from .worker_stats import WorkerStats

# Position of a rank that has taken nothing.
NOTHING = BEGINNING


class WorkerPeer(msgspec.Struct):
    """A worker process.

    `heard_at` and `sent_at` are when the last message came from it and went to it. A worker is
    `unresponsive` when a lease of it expired or was lost, or others had to do it, and it has shown
    no result since: it gets no more work until it does. `failure` is why it cannot open the job's
    source, empty if it can or has not tried; `rubbish` counts what it sent that cannot be right.
    `in_progress` is the sample that it last reported to work on, at `heartbeat_at`. `serves` is
    where ranks pull its payloads, None if they cannot; `why_inline` why it announces no more there.
    """

    peer: bytes
    hello: WorkerHello
    heard_at: float
    sent_at: float
    unresponsive: bool = False
    failure: str = ""
    rubbish: int = 0
    in_progress: WorkInProgress = NOT_REPORTED
    heartbeat_at: float = -math.inf
    fingerprint: str = ""
    stats: WorkerStats = msgspec.field(default_factory=lambda: WorkerStats(0.0))
    clock: Offset = NOT_MEASURED
    serves: PayloadServer | None = None
    why_inline: str = ""


class RankPeer(msgspec.Struct):
    """A trainer process, which plays one or several ranks.

    `started` is the run that it started last. `finished` is set once it was sent the end of that
    run, of which it may have more to take. `taken_until` is the (step, microbatch) up to which it
    took that run before the balancer started the run again. `launch` counts the launches of the
    trainer, as far as they can be distinguished from here. `pinged_at` is when it last reported
    that it waits for a microbatch. `taken` is what it has acknowledged of its run since the
    balancer started that.
    """

    peer: bytes
    hello: RankHello
    started: StartRun | None = None
    finished: bool = False
    sent_at: float = 0.0
    launch: int = 0
    pinged_at: float = -math.inf
    taken_until: Position = NOTHING
    taken: RankProgress = msgspec.field(default_factory=RankProgress)
    clock: Offset = NOT_MEASURED

    def reached(self, number: int) -> Position:
        """Return the first microbatch of its run that it may still need, as one of its ranks."""
        here = self.started.start if self.started is not None else NO_PLACE
        return max(self.taken_until, (here.step, here.microbatch), self.taken.needed([number]))

    def has_seat_of(self, hello: RankHello) -> bool:
        """Return whether it plays one of a process' ranks, with the same number among sharers."""
        mine = self.hello
        return mine.sharer == hello.sharer and not set(mine.ranks).isdisjoint(hello.ranks)
