"""Defines what all parties say to each other beside the messages of pools, parties and jobs.

A balancer tells workers and trainers whether they take part, and workers ask which jobs there are.
All messages are frozen records; the kinds of the others are in pool/messages.py,
parties/messages.py and job/messages.py, and transport/wire.py knows all of them.
"""

from .records import ArrayRecord
from .status_messages import GetStatus, StatusReport
from .trace_messages import StartTrace, TraceReport, TraceSpans

PROTOCOL_VERSION = 19
# Any of the kinds of messages.
Message = ArrayRecord


class UnknownPeer(ArrayRecord, frozen=True):
    """The answer to a peer that is not known (any more): it must send its hello again."""


class PeerRejected(ArrayRecord, frozen=True):
    """The peer cannot take part, and why."""

    reason: str


class Bye(ArrayRecord, frozen=True):
    """The balancer is done with the peer: a worker ends, a trainer that left is released."""


class BalancerStops(ArrayRecord, frozen=True):
    """The balancer was asked to end; a trainer keeps its place, and waits for the next balancer."""


class ListJobs(ArrayRecord, frozen=True):
    """Ask which jobs the balancer has."""


class JobList(ArrayRecord, frozen=True):
    """The jobs that the balancer has; a worker joins each by the job's name in its own."""

    names: tuple[str, ...]


KINDS = (
    UnknownPeer, PeerRejected, Bye, BalancerStops, ListJobs, JobList, GetStatus, StatusReport,
    StartTrace, TraceSpans, TraceReport,
)  # fmt: skip
