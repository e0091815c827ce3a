"""Count what a worker has done since it joined, and how much of that recently."""

from collections import Counter, deque

import msgspec

# The recent past, in seconds, and the time between the counts that are remembered of it.
RECENT_S = 30.0
MARK_S = 2.0
# The part that the last samples have in how long one takes.
WEIGHT = 0.5


class WorkerStats(msgspec.Struct):
    """The counts of one worker; `since` is when it joined, times are the coordinator's.

    Counted are samples `probed`, `decoded` and `failed`, `nbytes` of payload, and milliseconds at
    each work, `probe_ms` and `decode_ms`.

    >>> stats = WorkerStats(since=0.0)
    >>> for second in range(100): stats.add(float(second), decoded=3)
    >>> stats.done["decoded"]
    300
    >>> stats.recent(100.0)
    (Counter({'decoded': 90}), 30.0)
    """

    since: float
    # Milliseconds for one sample lately, None where that is not known.
    probe_ms_each: float | None = None
    decode_ms_each: float | None = None
    done: Counter[str] = msgspec.field(default_factory=Counter)
    _before: tuple[int, int] | None = None
    _marks: deque[tuple[float, Counter[str]]] = msgspec.field(default_factory=deque)

    def add(self, now: float, **counts: int) -> None:
        """Add results to the counts."""
        self._mark(now)
        self.done.update(counts)

    def record_work(self, now: float, probe_ms: int, decode_ms: int) -> None:
        """Record the total time that a worker has spent on each kind of work.

        The time that it reports first is left out: it may have worked for another balancer.
        """
        self._mark(now)
        if self._before is None:
            self._before = probe_ms, decode_ms
        self.done["probe_ms"] = probe_ms - self._before[0]
        self.done["decode_ms"] = decode_ms - self._before[1]

    def note_probing(self, each_us: int) -> None:
        """Note how long it takes to measure a sample; a negative time says that it is not known."""
        if each_us >= 0:
            self.probe_ms_each = _mean(self.probe_ms_each, each_us / 1000)

    def note_decoding(self, each_us: int) -> None:
        """Note how long it takes to decode a sample, as `note_probing` does."""
        if each_us >= 0:
            self.decode_ms_each = _mean(self.decode_ms_each, each_us / 1000)

    def recent(self, now: float) -> tuple[Counter[str], float]:
        """Return the counts of the recent past, and its length in seconds."""
        start, before = self.since, Counter[str]()
        for when, done in self._marks:
            if when > now - RECENT_S:
                break
            start, before = when, done
        return self.done - before, max(0.0, now - start)

    def _mark(self, now: float) -> None:
        """Remember the counts every MARK_S, as far back as `recent` needs them."""
        if self._marks and now - self._marks[-1][0] < MARK_S:
            return
        self._marks.append((now, self.done.copy()))
        while len(self._marks) > 1 and self._marks[1][0] <= now - RECENT_S:
            self._marks.popleft()


def _mean(before: float | None, new: float) -> float:
    return new if before is None else WEIGHT * new + (1 - WEIGHT) * before
