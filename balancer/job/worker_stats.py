"""What a job's workers have told and done, and what its run left out: counted for diagnostics."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..pool.messages import FromWorker, PartMade, PartMeasured, PoolBeat
from ..pool.workers import PoolPart, PoolWorker
from ..protocol.parts import Hole
from ..protocol.status_messages import MICROSECONDS, ClockOffset
from ..run.arrivals import MicrobatchFacts
from .recent_counts import RecentCounts

# The last holes are remembered.
REMEMBERED = 4


@dataclass(slots=True, eq=False)
class PoolWorkerStats:
    """What a worker has done since it joined; counts: see WorkerStatus, by its names."""

    counts: RecentCounts
    clock: ClockOffset = field(default_factory=ClockOffset)
    _first: PoolBeat | None = None

    def take_beat(self, beat: PoolBeat, now: float) -> None:
        """Note the times that a beat tells, but for those of the first: it may have been away."""
        first = self._first = self._first or beat
        totals = {"busy_ms": beat.busy_ms - first.busy_ms, "cpu_ms": beat.cpu_ms - first.cpu_ms}
        self.counts.add(now, **{name: n - self.counts.done[name] for name, n in totals.items()})
        if beat.clock_us:
            self.clock.note(beat.clock_us, round(now * MICROSECONDS))

    def take_answer(self, answer: PartMade | PartMeasured, part: PoolPart, now: float) -> None:
        """Count what a worker has made of a part."""
        failed, took_ms = len(answer.failed), answer.took_us // 1000
        count = len(part.places) - failed
        if isinstance(answer, PartMeasured):
            # What is kept loaded needs no time to be loaded later.
            took_ms *= bool(answer.kept)
            self.counts.add(now, probed=count, failed=failed, decode_ms=took_ms)
        else:
            count = min(count, 1) if part.task.is_spare else count
            self.counts.add(
                now, decoded=count, failed=failed, nbytes=answer.nbytes, decode_ms=took_ms
            )


class JobStats:
    """Counts of a job's run; late: answers that nobody waits for, in all.

    holes, over_budget: samples that the run has left out, and microbatches above a budget.
    """

    def __init__(self) -> None:
        self.late = self.holes = self.over_budget = 0
        self.last_holes = deque[Hole](maxlen=REMEMBERED)

    def note(
        self, worker: PoolWorker | None, stats: PoolWorkerStats, message: FromWorker, now: float
    ) -> None:
        """Take note of a worker's message, before the pool takes it."""
        if isinstance(message, PoolBeat):
            stats.take_beat(message, now)
        elif isinstance(message, PartMade | PartMeasured):
            giving = None if worker is None else worker.given.get(message.number)
            self.late += giving is None
            if giving is not None:
                stats.take_answer(message, giving.part, now)

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
