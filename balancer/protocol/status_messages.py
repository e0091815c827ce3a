"""The balancer's status report, for diagnosis only; made by coordinator/status_report.py."""

from .parts import Hole
from .records import ArrayRecord, Integer


class WorkerStatus(ArrayRecord, frozen=True):
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
    heard_ms: Integer
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


class TrainerStatus(ArrayRecord, frozen=True):
    """What the balancer knows of a trainer process; clock as in WorkerNote.

    ranks: those it plays, as text. asked_ms: how long ago it asked for the earliest microbatch that
    it has not been sent (of `step` and `microbatch`), -1 if there is none; `needs` is what that one
    lacks. waits: it has said within a second or two that it has nothing to train on.
    """

    ranks: str
    state: str
    epoch: Integer
    step: Integer
    microbatch: Integer
    asked_ms: Integer
    waits: bool
    needs: str
    ahead_us: Integer
    error_us: Integer


class StatusReport(ArrayRecord, frozen=True):
    """The answer to Inspect: how the run goes, and notes on peers, the most telling first.

    workers, trainers: how many there are, all of them; `notes` and `ranks` are bounded. Counts
    since the balancer was started: leases that ran out (the last one expired_ms ago, -1: none),
    workers lost (the last lost_ms ago, with names), messages dropped by the coordinator, refused
    before it (messages and peers). turned_away: why the last workers were not let in. holes:
    samples given up in this run, the last ones in `last_holes`. front: the earliest step that is
    not taken by all, or -1. settled: all that is planned has been decoded.
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
    settled: bool
    leases: Integer
    expired: Integer
    expired_ms: Integer
    lost: Integer
    lost_ms: Integer
    last_lost: tuple[str, ...]
    dropped: Integer
    refused: Integer
    turned_away: tuple[str, ...]
    holes: Integer
    last_holes: tuple[Hole, ...]
    notes: tuple[WorkerStatus, ...]
    ranks: tuple[TrainerStatus, ...]
