"""Count what a worker has done since it joined, and how much of that recently."""

from collections import deque

import msgspec
from msgspec import structs

# The recent past, in seconds, and the time between the counts that are remembered of it.
RECENT_S = 30.0
MARK_S = 2.0
# The part that the last samples have in how long one takes.
WEIGHT = 0.5


class WorkCounts(msgspec.Struct, frozen=True):
    """Counts: samples probed, decoded and failed, bytes of payload, milliseconds at each work."""

    probed: int = 0
    decoded: int = 0
    failed: int = 0
    nbytes: int = 0
    probe_ms: int = 0
    decode_ms: int = 0

    def since(self, before: "WorkCounts") -> "WorkCounts":
        """Return what was done after an earlier count.

        >>> WorkCounts(probed=5, decoded=3).since(WorkCounts(probed=4)).decoded
        3
        """
        return WorkCounts(
            self.probed - before.probed,
            self.decoded - before.decoded,
            self.failed - before.failed,
            self.nbytes - before.nbytes,
            self.probe_ms - before.probe_ms,
            self.decode_ms - before.decode_ms,
        )


class WorkerStats(msgspec.Struct):
    """The counts of one worker; `since` is when it joined, times are the coordinator's.

    >>> stats = WorkerStats(since=0.0)
    >>> for second in range(100): stats.add(float(second), decoded=3)
    >>> stats.done.decoded
    300
    >>> stats.recent(100.0)
    (WorkCounts(probed=0, decoded=90, failed=0, nbytes=0, probe_ms=0, decode_ms=0), 30.0)
    """

    since: float
    # Milliseconds for one sample lately, None where that is not known.
    probe_ms_each: float | None = None
    decode_ms_each: float | None = None
    done: WorkCounts = msgspec.field(default_factory=WorkCounts)
    _before: tuple[int, int] | None = None
    _marks: deque[tuple[float, WorkCounts]] = msgspec.field(default_factory=deque)

    def add(
        self, now: float, probed: int = 0, decoded: int = 0, failed: int = 0, nbytes: int = 0
    ) -> None:
        """Add results to the counts."""
        self._mark(now)
        done = self.done
        # The constructor: dataclasses.replace costs four times as much, for each message.
        self.done = WorkCounts(
            done.probed + probed,
            done.decoded + decoded,
            done.failed + failed,
            done.nbytes + nbytes,
            done.probe_ms,
            done.decode_ms,
        )

    def record_work(self, now: float, probe_ms: int, decode_ms: int) -> None:
        """Record the total time that a worker has spent on each kind of work.

        The time that it reports first is left out: it may have worked for another balancer.
        """
        self._mark(now)
        if self._before is None:
            self._before = probe_ms, decode_ms
        probed, decoded = self._before
        self.done = structs.replace(
            self.done, probe_ms=probe_ms - probed, decode_ms=decode_ms - decoded
        )

    def note_probing(self, each_us: int) -> None:
        """Note how long it takes to measure a sample; a negative time says that it is not known."""
        if each_us >= 0:
            self.probe_ms_each = _mean(self.probe_ms_each, each_us / 1000)

    def note_decoding(self, each_us: int) -> None:
        """Note how long it takes to decode a sample, as `note_probing` does."""
        if each_us >= 0:
            self.decode_ms_each = _mean(self.decode_ms_each, each_us / 1000)

    def recent(self, now: float) -> tuple[WorkCounts, float]:
        """Return the counts of the recent past, and its length in seconds."""
        start, before = self.since, WorkCounts()
        for when, done in self._marks:
            if when > now - RECENT_S:
                break
            start, before = when, done
        return self.done.since(before), max(0.0, now - start)

    def _mark(self, now: float) -> None:
        """Remember the counts every MARK_S, as far back as `recent` needs them."""
        if self._marks and now - self._marks[-1][0] < MARK_S:
            return
        self._marks.append((now, self.done))
        while len(self._marks) > 1 and self._marks[1][0] <= now - RECENT_S:
            self._marks.popleft()


def _mean(before: float | None, new: float) -> float:
    return new if before is None else WEIGHT * new + (1 - WEIGHT) * before
