"""Diagnostics: asking for the balancer's status, and its report.

The report is made by balancer/job/status.py; `counterpoise doctor`, `top` and `--metrics` print
what is in it, and a fleet follows it.
"""

from .parts import Hole
from .records import ArrayRecord, Integer


class GetStatus(ArrayRecord, frozen=True):
    """Ask for a StatusReport of a job, "" for the sender's, or the first one.

    The sender takes no part in it.
    """

    job: str = ""


class WorkerStatus(ArrayRecord, frozen=True):
    """A worker as the balancer sees it; used for diagnostics only.

    unresponsive: it is at one sample for long. last_message_ms: time since its last message.
    parts: of microbatches, which it has to do. Counts start when it connected; those named `recent`
    cover the last recent_ms. decode_ms: time of decoding, and busy_ms: of all work, as the worker
    reports it; cpu_ms: what its process used. transport: how its payloads travel, and why.
    """

    name: str
    state: str
    unresponsive: bool
    last_message_ms: Integer
    parts: Integer
    probed: Integer
    decoded: Integer
    failed: Integer
    nbytes: Integer
    recent_ms: Integer
    recent_decoded: Integer
    recent_bytes: Integer
    recent_decode_ms: Integer
    recent_busy_ms: Integer
    recent_cpu_ms: Integer
    transport: str


class TrainerStatus(ArrayRecord, frozen=True):
    """A trainer process as the balancer sees it.

    ranks: those it serves, as text. step, microbatch: the earliest microbatch that it lacks;
    oldest_request_ms: time since it had the one before, -1 if it asks for none; missing: what the
    microbatch waits for. is_waiting: it has nothing to train on, as it reported within the last
    seconds. waited_ms: what it has waited for microbatches, in all.
    """

    ranks: str
    state: str
    step: Integer
    microbatch: Integer
    oldest_request_ms: Integer
    is_waiting: bool
    missing: str
    waited_ms: Integer


class StatusReport(ArrayRecord, frozen=True):
    """The response to GetStatus: the state of the run and of its peers; by default without a job.

    workers, trainers: their numbers; worker_statuses and trainer_statuses are bounded, the most
    important first. lost: workers, the last lost_ms ago (-1: none), the last ones in last_lost with
    why; turned_away: workers, the reasons for the last in rejected_workers; refused: messages and
    peers, since the balancer was started. holes: unusable samples of this run, the last ones in
    last_holes. front: the earliest step that some rank has not received completely, or -1. is_full:
    budget_bytes keep a microbatch from being made. loads_to_measure: only decoded samples show what
    they cost. parts: that workers have.
    """

    workers: Integer = 0
    trainers: Integer = 0
    waiting: str = "a trainer"
    trouble: str = ""
    epoch: Integer = -1
    front: Integer = -1
    held_bytes: Integer = 0
    budget_bytes: Integer = 0
    is_full: bool = False
    loads_to_measure: bool = False
    parts: Integer = 0
    lost: Integer = 0
    lost_ms: Integer = -1
    last_lost: tuple[str, ...] = ()
    turned_away: Integer = 0
    rejected_workers: tuple[str, ...] = ()
    refused: Integer = 0
    holes: Integer = 0
    last_holes: tuple[Hole, ...] = ()
    worker_statuses: tuple[WorkerStatus, ...] = ()
    trainer_statuses: tuple[TrainerStatus, ...] = ()
