"""What a job's worker has told and done: counted for diagnostics."""

from collections import Counter, deque

from ..pool.messages import PartMade, PartMeasured, PoolBeat
from ..pool.workers import PoolPart

# What is counted as recent is of the last RECENT_S to twice that.
RECENT_S = 15.0


class PoolWorkerStats:
    """What a worker has done since it joined; done: see WorkerStatus, by its names."""

    def __init__(self, now: float) -> None:
        self.done = Counter[str]()
        self._marks = deque([(now, Counter[str]())], maxlen=2)
        self._first: PoolBeat | None = None

    @property
    def since(self) -> float:
        """Return since when the recent past is counted, in seconds."""
        return self._marks[0][0]

    def recent(self) -> Counter[str]:
        """Return what was done in the recent past."""
        return self.done - self._marks[0][1]

    def _add(self, now: float, **counts: int) -> None:
        if now >= self._marks[-1][0] + RECENT_S:
            self._marks.append((now, self.done.copy()))
        for name, count in counts.items():
            self.done[name] += count

    def take_beat(self, beat: PoolBeat, now: float) -> None:
        """Note the times that a beat tells, but for those of the first: it may have been away."""
        first = self._first = self._first or beat
        totals = {"busy_ms": beat.busy_ms - first.busy_ms, "cpu_ms": beat.cpu_ms - first.cpu_ms}
        self._add(now, **{name: n - self.done[name] for name, n in totals.items()})

    def take_answer(self, answer: PartMade | PartMeasured, part: PoolPart, now: float) -> None:
        """Count what a worker has made of a part."""
        failed, took_ms = len(answer.failed), answer.took_us // 1000
        count = len(part.places) - failed
        if isinstance(answer, PartMeasured):
            # What is kept loaded needs no time to be loaded later.
            self._add(now, probed=count, failed=failed, decode_ms=took_ms * bool(answer.kept))
        else:
            count = min(count, 1) if part.task.is_spare else count
            self._add(now, decoded=count, failed=failed, nbytes=answer.nbytes, decode_ms=took_ms)
