"""Diagnostics: the balancer's status and its report; what peers have done; how clocks differ.

The report is made by balancer/job/status.py.
"""

from collections import Counter, deque
from collections.abc import Iterable

from .parts import Hole
from .records import ArrayRecord, Integer

KEPT = 8
MICROSECONDS = 1_000_000
# Figures that peers report are limited to this, so that sums and differences fit into 64 bits.
LIMIT = 1 << 60
# How far a clock is ahead that nobody has told of.
UNKNOWN_US = -2 * LIMIT


class ClockOffset:
    """How far another machine's wall clock is ahead of this one's, by what it has told of it.

    What it tells is on its way for a while, which makes its clock seem to be behind: the largest of
    the last differences is the best.

    >>> clock = ClockOffset()
    >>> for told_us, here_us in ((5_000, 1_000), (6_000, 2_900)): clock.note(told_us, here_us)
    >>> clock.ahead_us
    4000
    """

    def __init__(self) -> None:
        self._ahead_us: deque[int] = deque(maxlen=KEPT)

    def note(self, told_us: int, here_us: int) -> None:
        """Note a reading of the other clock, and this machine's when it came."""
        self._ahead_us.append(bounded(told_us) - here_us)

    @property
    def ahead_us(self) -> int:
        """The best estimate, UNKNOWN_US if the other machine has told nothing."""
        return max(self._ahead_us, default=UNKNOWN_US)


def bounded(reported: int) -> int:
    """Return a figure that a peer reported, limited to values that can be added safely.

    >>> bounded(-5), bounded(1 << 62) == LIMIT
    (-5, True)
    """
    return max(-LIMIT, min(reported, LIMIT))


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
        self._since = since
        self._marks: deque[tuple[float, Counter[str]]] = deque()

    def add(self, now: float, **counts: int) -> None:
        """Add to what was done."""
        self.mark(now)
        for name, count in counts.items():
            self.done[name] = bounded(self.done[name] + count)

    def recent(self, now: float) -> tuple[Counter[str], float]:
        """Return the counts of the recent past, and its length in seconds."""
        start, before = self._since, Counter[str]()
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


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as text.

    >>> format_ranks((0, 1, 2, 3, 6))
    '0-3, 6'
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(f"{a}-{b}" if a < b else str(a) for a, b in spans)


class GetStatus(ArrayRecord, frozen=True):
    """Ask for a StatusReport; the sender takes no part in the job."""

    number: Integer = 0


class WorkerStatus(ArrayRecord, frozen=True):
    """A worker as the balancer sees it; used for diagnostics only.

    unresponsive: it is at one sample for long. last_message_ms: time since its last message.
    parts: of microbatches, which it has to do. Counts start when it connected; those named `recent`
    cover the last recent_ms. decode_ms: time of decoding, and busy_ms: of all work, as the worker
    reports it; cpu_ms: what its process used. ahead_us: how far its wall clock is ahead of the
    balancer's, UNKNOWN_US if it has not told. transport: how its payloads travel, and why.
    """

    name: str
    host: str
    software: str
    fingerprint: str
    state: str
    unresponsive: bool
    last_message_ms: Integer
    parts: Integer
    probed: Integer
    decoded: Integer
    failed: Integer
    nbytes: Integer
    recent_ms: Integer
    recent_probed: Integer
    recent_decoded: Integer
    recent_bytes: Integer
    recent_decode_ms: Integer
    recent_busy_ms: Integer
    recent_cpu_ms: Integer
    ahead_us: Integer
    transport: str


class TrainerStatus(ArrayRecord, frozen=True):
    """A trainer process as the balancer sees it; ahead_us as in WorkerStatus.

    ranks: those it serves, as text. step, microbatch: the earliest microbatch that it lacks;
    oldest_request_ms: time since it had the one before, -1 if it asks for none; missing: what the
    microbatch waits for. is_waiting: it has nothing to train on, as it reported within the last
    seconds. waited_ms: what it has waited for microbatches, in all.
    """

    ranks: str
    state: str
    epoch: Integer
    step: Integer
    microbatch: Integer
    oldest_request_ms: Integer
    is_waiting: bool
    missing: str
    ahead_us: Integer
    waited_ms: Integer


class StatusReport(ArrayRecord, frozen=True):
    """The response to GetStatus: the state of the run and of its peers, the most important first.

    workers, trainers: their numbers; worker_statuses and trainer_statuses are bounded and may hold
    fewer. Counts since the job came: lost workers (the last lost_ms ago, -1: none, with names and
    why), messages dropped as late or repeated; since the balancer was started: messages and peers
    refused. turned_away: workers that were rejected, the reasons for the last in rejected_workers.
    holes: unusable samples of this run, the last ones in last_holes. over_budget: samples that
    exceed a budget by themselves, in microbatches of their own. front: the earliest step that some
    rank has not received completely, or -1. is_full: budget_bytes keep a microbatch from being
    made. all_decoded: everything that is planned has been decoded. loads_to_measure: only decoded
    samples show what they cost. parts: that workers have.
    """

    number: Integer
    clock_us: Integer
    software: str
    workers: Integer
    trainers: Integer
    waiting: str
    trouble: str
    epoch: Integer
    front: Integer
    held_bytes: Integer
    budget_bytes: Integer
    is_full: bool
    all_decoded: bool
    loads_to_measure: bool
    parts: Integer
    lost: Integer
    lost_ms: Integer
    last_lost: tuple[str, ...]
    dropped: Integer
    refused: Integer
    rejected_workers: tuple[str, ...]
    holes: Integer
    last_holes: tuple[Hole, ...]
    worker_statuses: tuple[WorkerStatus, ...]
    trainer_statuses: tuple[TrainerStatus, ...]
    over_budget: Integer = 0
    turned_away: Integer = 0
