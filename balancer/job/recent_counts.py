"""Counts what a peer has done, in all and of late."""

from collections import Counter, deque

from ..protocol.status_messages import bounded

# The recent past, in seconds, and the time between the counts that are remembered of it.
RECENT_S = 30.0
MARK_S = 2.0


class RecentCounts:
    """What a peer has done, by name, and that of the recent past; times in seconds.

    >>> counts = RecentCounts(since=0.0)
    >>> for second in range(100): counts.add(float(second), decoded=3)
    >>> counts.done["decoded"]
    300
    >>> counts.recent(100.0)
    (Counter({'decoded': 90}), 30.0)
    """

    def __init__(self, since: float) -> None:
        self.done = Counter[str]()
        self.since = since
        self._marks: deque[tuple[float, Counter[str]]] = deque()

    def add(self, now: float, **counts: int) -> None:
        """Add to what was done."""
        self.mark(now)
        for name, count in counts.items():
            self.done[name] = bounded(self.done[name] + count)

    def recent(self, now: float) -> tuple[Counter[str], float]:
        """Return the counts of the recent past, and its length in seconds."""
        start, before = self.since, Counter[str]()
        for when, done in self._marks:
            if when > now - RECENT_S:
                break
            start, before = when, done
        return self.done - before, max(0.0, now - start)

    def mark(self, now: float) -> None:
        """Remember the counts every MARK_S, as far back as `recent` needs them."""
        if self._marks and now - self._marks[-1][0] < MARK_S:
            return
        self._marks.append((now, self.done.copy()))
        while len(self._marks) > 1 and self._marks[1][0] <= now - RECENT_S:
            self._marks.popleft()
