"""The balancer's status report, for diagnosis only; made by coordinator/status_report.py."""

from dataclasses import dataclass
from typing import ClassVar

from .parts import Hole, Payloads


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What the balancer knows of a worker, for people who look; nothing is decided by it.

    heard_ms: since when nothing was heard of it. Counts are since it came; those named `recent` are
    of the last recent_ms. probe_ms and decode_ms: time at work, as it says. ahead_us: how far its
    wall clock is ahead of the balancer's, give or take error_us (-1: not known).
    """

    name: str
    host: str
    software: str
    fingerprint: str
    state: str
    late: bool
    heard_ms: int
    leases: int
    samples: int
    probed: int
    decoded: int
    failed: int
    nbytes: int
    recent_ms: int
    recent_probed: int
    recent_decoded: int
    recent_bytes: int
    recent_probe_ms: int
    recent_decode_ms: int
    ahead_us: int
    error_us: int


@dataclass(frozen=True, slots=True)
class TrainerStatus:
    """What the balancer knows of a trainer process; clock as in WorkerNote.

    ranks: those it plays, as text. asked_ms: how long ago it asked for the earliest microbatch that
    it has not been sent (of `step` and `microbatch`), -1 if there is none; `needs` is what that one
    lacks. waits: it has said within a second or two that it has nothing to train on.
    """

    ranks: str
    state: str
    epoch: int
    step: int
    microbatch: int
    asked_ms: int
    waits: bool
    needs: str
    ahead_us: int
    error_us: int


@dataclass(frozen=True, slots=True)
class StatusReport:
    """The answer to Inspect: how the run goes, and notes on peers, the most telling first.

    workers, trainers: how many there are, all of them; `notes` and `ranks` are bounded. Counts
    since the balancer was started: leases that ran out (the last one expired_ms ago, -1: none),
    workers lost (the last lost_ms ago, with names), messages dropped by the coordinator, refused
    before it (messages and peers). turned_away: why the last workers were not let in. holes:
    samples given up in this run, the last ones in `last_holes`. front: the earliest step that is
    not taken by all, or -1. settled: all that is planned has been decoded.
    """

    PAYLOADS: ClassVar[Payloads] = "none"
    number: int
    clock_us: int
    software: str
    workers: int
    trainers: int
    waiting: str
    trouble: str
    epoch: int
    front: int
    held_bytes: int
    reserved_bytes: int
    budget_bytes: int
    largest_bytes: int
    settled: bool
    leases: int
    expired: int
    expired_ms: int
    lost: int
    lost_ms: int
    last_lost: tuple[str, ...]
    dropped: int
    refused: int
    turned_away: tuple[str, ...]
    holes: int
    last_holes: tuple[Hole, ...]
    notes: tuple[WorkerStatus, ...]
    ranks: tuple[TrainerStatus, ...]
