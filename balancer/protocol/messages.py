"""Defines the protocol's messages, frozen records, and lists all kinds by sender and receiver.

Theory of operation. Three parties talk: workers, ranks, and the coordinator in the balancer. A
worker sends WorkerHello, receives the job (Welcome), opens its source and sends WorkerReady; then
it receives leases (samples to probe or to decode) and answers them, in one or several messages. A
rank sends RankHello with the job, starts a run (an epoch, from a position), requests microbatches
some way ahead, and acknowledges those that it has copied. Every message may be repeated: a second
request or a second answer changes nothing.

Payloads (decoded samples) are not part of a record: a worker keeps them for ranks to pull, or they
are raw frames behind it. `WITH_PAYLOADS` lists the kinds that carry any.
"""

from .parts import NO_PLACE, Cost, EpochPosition, Ready
from .payload_messages import (
    Ack,
    Batch,
    DecodeDone,
    Lease,
    PayloadsFreed,
    ProbeDone,
    PulledPayloads,
    PullFailed,
    PullPayloads,
    RequestBatch,
    Revoke,
    ServePayloads,
    StopServing,
)
from .records import VERSION, ArrayRecord, Integer
from .status_messages import GetStatus, StatusReport
from .trace_messages import StartTrace, TraceReport, TraceSpans

PROTOCOL_VERSION = 18


# --- worker to coordinator


class WorkerHello(ArrayRecord, frozen=True):
    """A worker process has started; `name` is unique, `incarnation` grows with every restart.

    slot: the worker's number on its machine. software: its versions, as text for diagnostics.
    version: that of counterpoise, which must be the balancer's. transport: how its payloads travel,
    and why, as text for diagnostics. address, key: where ranks may pull them, as in PayloadServer.
    """

    name: str
    incarnation: Integer
    host: str
    slot: Integer
    software: str = ""
    version: str = VERSION
    transport: str = "inline"
    address: str = ""
    key: bytes = b""


class WorkerReady(ArrayRecord, frozen=True):
    """The worker's source is open; it has `count` samples, produced by code with this fingerprint.

    number: that of the Welcome that it answers; repeated when that is.
    """

    count: Integer
    fingerprint: str
    number: Integer = 0


class WorkerHeartbeat(ArrayRecord, frozen=True):
    """The named worker process is alive.

    lease, ordinal: the sample being processed, (0, -1) if idle. A worker that is busy longer than a
    lease lasts hangs; one that is idle in two heartbeats has lost its earlier leases.
    leaving: it is to end, and is leased no more; Bye comes once nothing that it has is needed.
    For diagnostics only: probe_ms, decode_ms: time at work; cpu_ms: of CPU; clock_us: wall clock.
    """

    name: str
    incarnation: Integer
    probe_ms: Integer = 0
    decode_ms: Integer = 0
    clock_us: Integer = 0
    lease: Integer = 0
    ordinal: Integer = -1
    leaving: bool = False
    cpu_ms: Integer = 0


class SampleFailed(ArrayRecord, frozen=True):
    """A sample that cannot be used; `io` marks an I/O error that persisted after all retries.

    `source` is the file it is in, empty where that is not known.
    """

    lease: Integer
    ordinal: Integer
    key: str
    reason: str
    io: bool
    source: str = ""


class WorkerFailed(ArrayRecord, frozen=True):
    """The worker cannot serve this job at all, and why; `number` as in WorkerReady."""

    reason: str
    number: Integer = 0


class WorkerBye(ArrayRecord, frozen=True):
    """The worker ends, as its operator or its host asked."""


# --- coordinator to worker


class Welcome(ArrayRecord, frozen=True):
    """The job: a JSON description of the source (empty for workers that were started with theirs).

    Repeated with the same `number` it only asks if the worker is ready.
    """

    job: str
    number: Integer = 0


class UnknownPeer(ArrayRecord, frozen=True):
    """The answer to a peer that is not known (any more): it must send its hello again."""


# --- rank to coordinator


class RankHello(ArrayRecord, frozen=True):
    """A trainer process has started, serves these data-parallel ranks, and has this job (JSON).

    sharer: its number among the processes that share its ranks, each of which gets all batches.
    ahead: how many steps it may be ahead of the slowest of them. name: the process, for messages.
    version: as in WorkerHello.
    """

    ranks: tuple[Integer, ...]
    job: str
    sharer: Integer = 0
    ahead: Integer = 1
    name: str = ""
    version: str = VERSION


class StartRun(ArrayRecord, frozen=True):
    """Start or join a run: an epoch from a position. All ranks must name the same run.

    A rank that returns to a restarted balancer adds how far it has got: here: its position. holes:
    samples that cannot be used. known: steps of which the rank has received a part and whose holes
    are therefore final. costs: the pipeline's that ordering goes by, the text of PipelineCosts; "",
    those of the job. samples: the number of samples that its ledger is of, or that it has had a
    part of; -1 where any will do.
    """

    run: Integer
    epoch: Integer
    at: EpochPosition
    here: EpochPosition = NO_PLACE
    holes: tuple[Integer, ...] = ()
    known: tuple[Integer, ...] = ()
    costs: str = ""
    samples: Integer = -1

    @property
    def start(self) -> EpochPosition:
        """The position from which this rank continues the run."""
        return self.here if self.has_returned else self.at

    @property
    def has_returned(self) -> bool:
        """True of a rank that was in the run before this balancer was started."""
        return self.here != NO_PLACE

    def is_after(self, other: "StartRun") -> bool:
        """Return True if a rank may send this after the other: it never moves back in a run."""
        if self == other or self.run != other.run:
            return self.run > other.run
        mine, its = self.start, other.start
        return (mine.step, mine.microbatch) >= (its.step, its.microbatch)


class LabelCount(ArrayRecord, frozen=True):
    """The label tokens that a rank has counted in the batches of a step, and asks for the total.

    Only where nobody can count them before a batch is collated; see JobSpec.counts_batches.
    """

    run: Integer
    rank: Integer
    step: Integer
    tokens: Cost


class Ping(ArrayRecord, frozen=True):
    """Ask for a Pong with the same number; clock_us as in WorkerHeartbeat."""

    number: Integer = 0
    clock_us: Integer = 0


class WorkersEnded(ArrayRecord, frozen=True):
    """This trainer has ended its worker processes of these names; others may follow."""

    names: tuple[str, ...]


class RankBye(ArrayRecord, frozen=True):
    """The trainer process is done with the job."""


# --- coordinator to rank


class LabelTotal(ArrayRecord, frozen=True):
    """The label tokens of a step on all ranks, once each of them has sent its LabelCount."""

    run: Integer
    step: Integer
    tokens: Integer


class EpochEnd(ArrayRecord, frozen=True):
    """The run is over: `steps` is the number of its steps, and the first that does not exist.

    left_out: samples that are in no step, as there would have been a microbatch without samples.
    """

    run: Integer
    steps: Integer
    left_out: Integer = 0


class RunFailed(ArrayRecord, frozen=True):
    """The run cannot continue, and why."""

    reason: str


class Pong(ArrayRecord, frozen=True):
    """The answer to Ping: what the run waits for.

    number: that of the Ping, 0 if there was none.
    """

    waiting: str
    number: Integer = 0


class BalancerStops(ArrayRecord, frozen=True):
    """The balancer was asked to end; the rank keeps its place, and waits for the next balancer."""


class Notice(ArrayRecord, frozen=True):
    """Something that the rank's log should say; it changes nothing."""

    text: str


# --- coordinator to either


class PeerRejected(ArrayRecord, frozen=True):
    """The peer cannot take part, and why."""

    reason: str


class Bye(ArrayRecord, frozen=True):
    """The coordinator is done with the peer: a worker ends, a rank that left is released."""


# --- worker to balancer, and back: beside all jobs


class ListJobs(ArrayRecord, frozen=True):
    """Ask which jobs the balancer has."""


class JobList(ArrayRecord, frozen=True):
    """The jobs that the balancer has; a worker joins each by the job's name in its own."""

    names: tuple[str, ...]


# Any of the kinds below.
Message = ArrayRecord
FROM_WORKER = (
    WorkerHello, WorkerReady, WorkerHeartbeat, ProbeDone, DecodeDone, SampleFailed, WorkerFailed,
    WorkerBye,
)  # fmt: skip
TO_WORKER = (
    Welcome, Lease, Revoke, PayloadsFreed, ServePayloads, StopServing, UnknownPeer, PeerRejected,
    Bye,
)  # fmt: skip
FROM_RANK = (
    RankHello, StartRun, RequestBatch, Ack, PullFailed, LabelCount, Ping, GetStatus, WorkersEnded,
    RankBye,
)  # fmt: skip
TO_RANK = (
    Ready, Batch, LabelTotal, EpochEnd, RunFailed, Pong, BalancerStops, Notice, UnknownPeer,
    PeerRejected, Bye,
)  # fmt: skip
BETWEEN_PEERS = (PullPayloads, PulledPayloads)
BESIDE_JOBS = (ListJobs, JobList, StatusReport, StartTrace, TraceSpans, TraceReport)
KINDS: dict[str, type[ArrayRecord]] = {
    kind.__name__: kind
    for kinds in (FROM_WORKER, TO_WORKER, FROM_RANK, TO_RANK, BETWEEN_PEERS, BESIDE_JOBS)
    for kind in kinds
}
# The kinds whose header is followed by a frame for each of its `items` that has no serial.
WITH_PAYLOADS = (DecodeDone, Batch)
