"""Who is there: the coordinator's records of workers and ranks, and whom it turns away."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..planning.problem.config import PlanConfig
from ..protocol.clock_offset import NOT_MEASURED, Offset
from ..protocol.job_spec import JobSpec, difference, from_json, to_json
from ..protocol.messages import Message, RankHello, RequestBatch, StartRun, WorkerHello, WorkerReady
from .run.epoch import WorkerView
from .run.poison_samples import UNTOLD, Hand
from .worker_stats import WorkerStats

# A position in the order takes 8 bytes, here and while it is drawn.
MAX_SAMPLES = 1 << 32
# The place of a rank that has had nothing.
NOTHING = (0, 0)
# What one rank may be waiting for; an honest one asks again.
MAX_ASKS = 1024
# What a refusal quotes of a job, in characters.
QUOTED = 1000
# Trainer processes that have come and gone: of so many it is remembered when they came.
MAX_REMEMBERED = 1 << 14


@dataclass(frozen=True, slots=True)
class Send:
    """An effect: send this message, with these payload frames, to this peer."""

    peer: bytes
    message: Message
    payloads: tuple[object, ...] = ()


@dataclass(slots=True)
class WorkerPeer:
    """A worker process: when it was heard of last, and when it was last told something.

    `late`: a lease of its ran out or was lost, and it has shown no result since. hand, beaten: what
    it said that it works on, and when it said so.
    """

    peer: bytes
    hello: WorkerHello
    heard: float
    told: float
    late: bool = False
    hand: Hand = UNTOLD
    beaten: float = -math.inf
    fingerprint: str = ""
    tally: WorkerStats = field(default_factory=lambda: WorkerStats(0.0))
    clock: Offset = NOT_MEASURED

    @property
    def view(self) -> WorkerView:
        """What a run needs to know of it."""
        return WorkerView(self.peer, self.hello.slot)


@dataclass(slots=True)
class RankPeer:
    """A trainer process; `finished`: it has been told that its run has no more to give.

    `launch` counts how often the ranks were started anew, as far as can be seen from here.
    `pinged` is when it said last that it has nothing to train on. had: what it had of the run
    that it has begun, as (step, microbatch), where that has started again since.
    """

    peer: bytes
    hello: RankHello
    begun: StartRun | None = None
    finished: bool = False
    told: float = 0.0
    launch: int = 0
    pinged: float = -math.inf
    had: tuple[int, int] = NOTHING
    clock: Offset = NOT_MEASURED


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """Who asked for a microbatch, and since when."""

    peer: bytes
    since: float


class PendingRequests:
    """The microbatches that ranks wait for, and who asked."""

    def __init__(self) -> None:
        self._asks: dict[tuple[int, int, int, int], PendingRequest] = {}

    def note(self, peer: bytes, ask: RequestBatch, now: float) -> None:
        """Write an ask down, unless there are too many; saying it twice changes nothing."""
        place = ask.run, ask.step, ask.microbatch, ask.rank
        known = self._asks.get(place)
        if known is not None and known.peer == peer:
            return
        if sum(asked.peer == peer for asked in self._asks.values()) < MAX_ASKS:
            self._asks[place] = PendingRequest(peer, now)

    def first_of(self, run: int) -> dict[bytes, tuple[RequestBatch, float]]:
        """Return each peer's nearest ask in a run, and since when it is open."""
        nearest: dict[bytes, tuple[RequestBatch, float]] = {}
        for place, asked in sorted(self._asks.items(), key=_place):
            number, step, microbatch, rank = place
            if number == run:
                ask = RequestBatch(run, rank, step, microbatch)
                nearest.setdefault(asked.peer, (ask, asked.since))
        return nearest

    def of(self, run: int) -> list[tuple[RequestBatch, bytes]]:
        """Return a run's asks, nearest first, and forget those of the runs before."""
        if not self._asks:
            return []
        self._asks = {place: asked for place, asked in self._asks.items() if place[0] >= run}
        return [
            (RequestBatch(run, rank, step, microbatch), asked.peer)
            for (number, step, microbatch, rank), asked in sorted(self._asks.items(), key=_place)
            if number == run
        ]

    def done(self, ask: RequestBatch) -> None:
        """Forget an ask that was answered."""
        del self._asks[ask.run, ask.step, ask.microbatch, ask.rank]

    def leave(self, peer: bytes) -> None:
        """Forget all that a rank has asked."""
        self._asks = {place: asked for place, asked in self._asks.items() if asked.peer != peer}


def _place(item: tuple[tuple[int, int, int, int], PendingRequest]) -> tuple[int, int, int, int]:
    return item[0]


def remember(table: dict[bytes, int], peer: bytes, fact: int) -> int:
    """Note a fact about a peer unless there is one; the earliest peers are forgotten.

    >>> known = {b"a": 1}
    >>> remember(known, b"a", 2), remember(known, b"b", 2), known
    (1, 2, {b'a': 1, b'b': 2})
    """
    known = table.setdefault(peer, fact)
    if len(table) > MAX_REMEMBERED:
        del table[next(iter(table))]
    return known


def why_rank_refused(
    job: JobSpec | None, hello: RankHello, plan_with: Callable[[PlanConfig], Any]
) -> str:
    """Return why a rank cannot take part in the job there is (if any), empty if it can."""
    try:
        theirs = from_json(hello.job)
        if theirs.plan is not None:
            plan_with(theirs.plan)
    except ValueError as error:
        return f"{error!s:.{QUOTED}}"
    if job is None and theirs.plan is None:
        return "this balancer plans: a loop without balancing has its workers on its own machine"
    if not hello.ranks or min(hello.ranks) < 0 or max(hello.ranks) >= theirs.ranks:
        return f"ranks {hello.ranks!s:.80} are not among the job's {theirs.ranks}"
    if job is not None and job != theirs:
        differ = difference(to_json(job), hello.job)
        return f"this balancer serves another job: {differ:.{QUOTED}}"
    return ""


def why_worker_refused(
    job: JobSpec | None, count: int, fingerprint: str, ready: WorkerReady
) -> str:
    """Return why a worker cannot join those that are ready (if any), empty if it can."""
    if not 0 <= ready.count <= MAX_SAMPLES:
        return f"this worker has {ready.count} samples: up to {MAX_SAMPLES} can be ordered"
    allowed = job is not None and job.mixed_workers and ready.count == count
    if not fingerprint or allowed or (ready.count, ready.fingerprint) == (count, fingerprint):
        return ""
    return (
        f"this worker's data or libraries differ from the others' (fingerprint "
        f"{ready.fingerprint:.80}, {ready.count} samples; the others have {fingerprint}, {count}): "
        "install the same versions, or allow it with mixed_workers=True"
    )


def why_apart(begins: Iterable[tuple[RankPeer, StartRun]]) -> str:
    """Return why ranks cannot run together, empty if they begin the same run at one place.

    >>> why_apart([])
    ''
    """
    places = {
        f"ranks {rank.hello.ranks} begin at epoch {begin.epoch}, step {begin.at.step}": (
            begin.epoch,
            begin.at,
        )
        for rank, begin in begins
    }
    if len(set(places.values())) < 2:
        return ""
    return f"the ranks are not at the same place: {'; '.join(sorted(places))}: give all one ledger"
