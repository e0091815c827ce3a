"""Diagnostics: asking for the balancer's status, its report, and how far clocks are apart.

The report is made by coordinator/status_report.py. How far one machine's wall clock is ahead of
another's: a peer notes when it sent a numbered request; the response holds the other clock's
reading. It was taken between sending and receiving, so the offset is known within half of the round
trip, and the quickest of the last responses is the best estimate (the clock filter of NTP, RFC
5905, section 10).
"""

from collections import deque

import msgspec

from .parts import Hole
from .records import ArrayRecord, Integer

KEPT = 8
MICROSECONDS = 1_000_000
# The error of an offset that was never measured.
UNKNOWN = -1
# Figures that peers report are limited to this, so that sums and differences fit into 64 bits.
LIMIT = 1 << 60


class Offset(msgspec.Struct, frozen=True):
    """One clock is `ahead_us` microseconds ahead of the other, give or take `error_us`."""

    ahead_us: int = 0
    error_us: int = UNKNOWN

    @property
    def is_known(self) -> bool:
        """Return True if the offset was ever measured."""
        return self.error_us >= 0

    def least_us(self) -> int:
        """Return the least distance between the clocks, in microseconds.

        >>> Offset(-5000, 1000).least_us(), Offset(500, 1000).least_us()
        (4000, 0)
        """
        return max(0, abs(self.ahead_us) - self.error_us) if self.is_known else 0


NOT_MEASURED = Offset()


class ClockFilter:
    """The requesting side: numbers its requests and keeps the best of the last responses.

    >>> clock = ClockFilter()
    >>> number = clock.request(now=10.0, wall=1000.0)
    >>> clock.record_response(number, their_us=990_050_000, now=10.1)
    >>> clock.best()
    Offset(ahead_us=10000000, error_us=50000)
    """

    def __init__(self) -> None:
        self._number = 0
        self._pending = (0, 0.0, 0.0)
        self._offsets: deque[Offset] = deque(maxlen=KEPT)

    def request(self, now: float, wall: float) -> int:
        """Return the number of a request sent now; `wall` is this side's wall clock."""
        self._number += 1
        self._pending = self._number, now, wall
        return self._number

    def record_response(self, number: int, their_us: int, now: float) -> None:
        """Record the other clock's reading; ignore the response to an older request."""
        pending, sent, wall = self._pending
        if number != pending or not number:
            return
        self._pending = 0, 0.0, 0.0
        trip_us = max(0, round((now - sent) * MICROSECONDS))
        here_us = round(wall * MICROSECONDS) + trip_us // 2
        self._offsets.append(Offset(here_us - their_us, (trip_us + 1) // 2))

    def best(self) -> Offset:
        """Return the best estimate of how far this side's clock is ahead."""
        return min(self._offsets, key=lambda each: each.error_us, default=NOT_MEASURED)


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
    time at work, as the worker reports it. ahead_us, error_us: its wall clock is ahead of the
    balancer's by ahead_us, plus or minus error_us (-1: not known). transport: how its payloads
    travel, and why.
    """

    name: str
    host: str
    software: str
    fingerprint: str
    state: str
    unresponsive: bool
    last_message_ms: Integer
    leases: Integer
    samples: Integer
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
    ahead_us: Integer
    error_us: Integer
    transport: str


class TrainerStatus(ArrayRecord, frozen=True):
    """A trainer process as the balancer sees it; ahead_us and error_us as in WorkerStatus.

    ranks: those it serves, as text. step, microbatch: the earliest microbatch that it has requested
    and not been sent; oldest_request_ms: time since that request, -1 if there is none; missing: why
    the microbatch cannot be sent yet. is_waiting: it has nothing to train on, as it reported within
    the last seconds.
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
    error_us: Integer


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
