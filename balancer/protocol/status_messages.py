"""Diagnostics: asking for the balancer's status, its report, and how far clocks are apart.

The report is made by balancer/job/status.py.
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
        self._ahead_us.append(max(-LIMIT, min(told_us, LIMIT)) - here_us)

    @property
    def ahead_us(self) -> int:
        """The best estimate, UNKNOWN_US if the other machine has told nothing."""
        return max(self._ahead_us, default=UNKNOWN_US)


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
