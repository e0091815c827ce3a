"""What a job's workers have told and done, and what its run left out: counted for diagnostics."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..pool.messages import FromWorker, PartMade, PartMeasured, PoolBeat
from ..pool.workers import PoolWorker
from ..protocol.parts import Hole
from ..protocol.status_messages import MICROSECONDS, ClockOffset
from ..run.arrivals import MicrobatchFacts
from .messages import JobNotOpened, JobOpened, JoinPool
from .recent_counts import RecentCounts

# The last holes are remembered.
REMEMBERED = 4


@dataclass(slots=True, eq=False)
class JoinedWorker:
    """A worker; heard: when it last said anything. counts: see WorkerStatus, by its names."""

    hello: JoinPool
    heard: float
    counts: RecentCounts
    fingerprint: str = ""
    clock: ClockOffset = field(default_factory=ClockOffset)
    _first: PoolBeat | None = None

    def take_beat(self, beat: PoolBeat, now: float) -> None:
        """Note the times that a beat tells, but for those of the first: it may have been away."""
        first = self._first = self._first or beat
        totals = {"busy_ms": beat.busy_ms - first.busy_ms, "cpu_ms": beat.cpu_ms - first.cpu_ms}
        self.counts.add(now, **{name: n - self.counts.done[name] for name, n in totals.items()})
        if beat.clock_us:
            self.clock.note(beat.clock_us, round(now * MICROSECONDS))


class JobStats:
    """The workers of a job by their names; late: answers that nobody waits for.

    holes, over_budget: samples that the run has left out, and microbatches above a budget.
    """

    def __init__(self, pool_workers: Mapping[bytes, PoolWorker]) -> None:
        """`pool_workers` are the pool's, which says what a part is."""
        self._pool_workers = pool_workers
        self.workers: dict[bytes, JoinedWorker] = {}
        self.late = self.holes = self.over_budget = 0
        self.last_holes = deque[Hole](maxlen=REMEMBERED)

    def note(
        self, peer: bytes, message: JoinPool | JobOpened | JobNotOpened | FromWorker, now: float
    ) -> None:
        """Take note of a worker's message, before the pool takes it; JoinPool: it begins anew."""
        if isinstance(message, JoinPool):
            self.workers[peer] = JoinedWorker(message, now, RecentCounts(now))
        worker = self.workers.get(peer)
        if worker is None:
            return
        worker.heard = now
        if isinstance(message, JobOpened):
            worker.fingerprint = message.fingerprint
        elif isinstance(message, PoolBeat):
            worker.take_beat(message, now)
        elif isinstance(message, PartMade | PartMeasured):
            known = self._pool_workers.get(peer)
            giving = None if known is None else known.given.get(message.number)
            if giving is None:
                self.late += 1
                return
            failed, took_ms = len(message.failed), message.took_us // 1000
            count = len(giving.part.places) - failed
            if isinstance(message, PartMeasured):
                # What is kept loaded needs no time to be loaded later.
                took_ms *= bool(message.kept)
                worker.counts.add(now, probed=count, failed=failed, decode_ms=took_ms)
                return
            count, nbytes = min(count, 1) if giving.part.task.is_spare else count, message.nbytes
            worker.counts.add(now, decoded=count, failed=failed, nbytes=nbytes, decode_ms=took_ms)

    def forget(self, peer: bytes) -> None:
        """Forget a worker, which is gone."""
        self.workers.pop(peer, None)

    def begin_run(self) -> None:
        """Count what is left out anew."""
        self.holes = self.over_budget = 0
        self.last_holes.clear()

    def note_given(self, facts: MicrobatchFacts, budgets: Sequence[int | None]) -> None:
        """Take note of a microbatch that is given to a rank."""
        self.holes += len(facts.holes)
        self.last_holes.extend(facts.holes)
        pairs = zip(facts.costs, budgets, strict=False)
        self.over_budget += any(budget is not None and cost > budget for cost, budget in pairs)
