"""Diagnostics: asking for the balancer's status, its report, and how far clocks are apart.

The report is made by coordinator/status_report.py.
"""

from collections import deque

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


class GetStatus(ArrayRecord, frozen=True):
    """Ask for a StatusReport; the sender takes no part in the job."""

    number: Integer = 0


class WorkerStatus(ArrayRecord, frozen=True):
    """A worker as the balancer sees it; used for diagnostics only.

    unresponsive: a lease of it has expired. last_message_ms: time since its last message. Counts
    start when it connected; those named `recent` cover the last recent_ms. probe_ms and decode_ms:
    time at work, as the worker reports it; cpu_ms: what its process used. ahead_us: how far its
    wall clock is ahead of the balancer's, UNKNOWN_US if it has not told. transport: how its
    payloads travel, and why.
    """

    name: str
    host: str
    software: str
    fingerprint: str
    state: str
    unresponsive: bool
    last_message_ms: Integer
    leases: Integer
    probed: Integer
    decoded: Integer
    failed: Integer
    nbytes: Integer
    recent_ms: Integer
    recent_probed: Integer
    recent_decoded: Integer
    recent_bytes: Integer
    recent_probe_ms: Integer
    recent_decode_ms: Integer
    recent_cpu_ms: Integer
    ahead_us: Integer
    transport: str


class TrainerStatus(ArrayRecord, frozen=True):
    """A trainer process as the balancer sees it; ahead_us as in WorkerStatus.

    ranks: those it serves, as text. step, microbatch: the earliest microbatch that it has requested
    and not been sent; oldest_request_ms: time since that request, -1 if there is none; missing: why
    the microbatch cannot be sent yet. is_waiting: it has nothing to train on, as it reported within
    the last seconds. waited_ms: what it has waited for microbatches, in all.
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
    fewer. Counts since the balancer was started: expired leases (the last expired_ms ago, -1:
    none), lost workers (the last lost_ms ago, with names), messages dropped by the coordinator,
    messages and peers refused before they reached it. turned_away: workers that were rejected, the
    reasons for the last in rejected_workers. holes: unusable samples of this run, the last ones in
    last_holes. over_budget: planned samples that exceed a budget by themselves, in microbatches of
    their own. front: the earliest step that some rank has not received completely, or -1.
    all_decoded: everything that is planned has been decoded.
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
    reserved_bytes: Integer
    budget_bytes: Integer
    largest_bytes: Integer
    all_decoded: bool
    leases: Integer
    expired: Integer
    expired_ms: Integer
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
