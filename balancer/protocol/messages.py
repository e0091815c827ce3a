"""Every message of the protocol: a frozen record each, and who says it to whom.

Theory of operation. Three parties talk: workers, ranks, and the coordinator in the balancer. A
worker says hello, is told the job, prepares its source and reports ready; then it is given leases
(samples to probe or to decode) and answers sample by sample. A rank says hello with the job, begins
a run (an epoch, from a position), asks for microbatches some way ahead, and acknowledges each that
it has copied. Everything can be said twice: asking again and answering again change nothing.

Payloads (decoded samples) are not part of a record: they travel as raw frames behind it. `PAYLOADS`
says how many frames a kind carries: none, one, or one for each of its items.
"""

from dataclasses import dataclass
from typing import ClassVar, get_args

from .clear_channel_messages import ClearPayloadOffer as ClearPayloadOffer
from .parts import NO_PLACE as NO_PLACE
from .parts import BatchItem as BatchItem
from .parts import EpochPosition as EpochPosition
from .parts import Hole as Hole
from .parts import Payloads as Payloads
from .parts import Probed as Probed
from .parts import SampleRef as SampleRef
from .parts import Weights as Weights
from .status_messages import StatusReport as StatusReport
from .status_messages import TrainerStatus as TrainerStatus
from .status_messages import WorkerStatus as WorkerStatus

PROTOCOL_VERSION = 1


# --- worker to coordinator


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """A worker process is there; `name` is its slot, `incarnation` grows with every restart.

    software: what it runs, as text for people.
    """

    PAYLOADS: ClassVar[Payloads] = "none"
    name: str
    incarnation: int
    host: str
    slot: int
    software: str = ""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The worker's source is open: its number of samples, and what shaped them.

    `number` is that of the Welcome that it answers; it is said again when that is.
    """

    PAYLOADS: ClassVar[Payloads] = "none"
    count: int
    fingerprint: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """The worker process named is alive; a `number` other than 0 asks for a Heard.

    probe_ms, decode_ms: how long it has been at work, in all. ahead_us, error_us: how far its wall
    clock is ahead of the balancer's (-1: not known). These are for people who look; nothing is
    decided by them. lease, ordinal: the sample that it works on (0, -1: none): one that it works on
    for longer than a lease lasts hangs; said twice, none: what it was given before was lost.
    """

    PAYLOADS: ClassVar[Payloads] = "none"
    name: str
    incarnation: int
    number: int = 0
    probe_ms: int = 0
    decode_ms: int = 0
    ahead_us: int = 0
    error_us: int = -1
    lease: int = 0
    ordinal: int = -1


@dataclass(frozen=True, slots=True)
class ProbeDone:
    """Costs found under a lease; the results may come in several messages."""

    PAYLOADS: ClassVar[Payloads] = "none"
    lease: int
    results: tuple[Probed, ...]


@dataclass(frozen=True, slots=True)
class DecodeDone:
    """One decoded sample; `cost` as in Probed, empty when the sample was probed before."""

    PAYLOADS: ClassVar[Payloads] = "one"
    lease: int
    ordinal: int
    key: str
    cost: tuple[int, ...]
    header: bytes


@dataclass(frozen=True, slots=True)
class SampleFailed:
    """A sample that cannot be used; `io` marks an I/O error that outlived its retries."""

    PAYLOADS: ClassVar[Payloads] = "none"
    lease: int
    ordinal: int
    key: str
    reason: str
    io: bool


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker cannot serve this job at all, and why; `number` as in WorkerReady."""

    PAYLOADS: ClassVar[Payloads] = "none"
    reason: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class WorkerBye:
    """The worker ends of its own accord."""

    PAYLOADS: ClassVar[Payloads] = "none"


# --- coordinator to worker


@dataclass(frozen=True, slots=True)
class Welcome:
    """The job: a JSON description of the source (empty where the worker was born with it).

    Said again with the same `number` it only asks whether the worker is ready.
    """

    PAYLOADS: ClassVar[Payloads] = "none"
    job: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to probe or decode some samples; `kind` is "probe" or "decode"."""

    PAYLOADS: ClassVar[Payloads] = "none"
    lease: int
    kind: str
    epoch: int
    refs: tuple[SampleRef, ...]


@dataclass(frozen=True, slots=True)
class Revoke:
    """The rest of a lease is no longer wanted."""

    PAYLOADS: ClassVar[Payloads] = "none"
    lease: int


@dataclass(frozen=True, slots=True)
class UnknownPeer:
    """The answer to a peer that is not known (any more): it must say hello again."""

    PAYLOADS: ClassVar[Payloads] = "none"


# --- rank to coordinator


@dataclass(frozen=True, slots=True)
class RankHello:
    """A trainer process is there, playing these data-parallel ranks, with this job (JSON)."""

    PAYLOADS: ClassVar[Payloads] = "none"
    ranks: tuple[int, ...]
    job: str


@dataclass(frozen=True, slots=True)
class StartRun:
    """Start (or join) a run: an epoch from a position. All ranks must name the same run.

    here: how far the rank has got since, where it comes back to a balancer that has forgotten it.
    holes: samples that cannot be used; known: the steps of which the rank has had some where holes
    are allowed: these are all that such a step has.
    """

    PAYLOADS: ClassVar[Payloads] = "none"
    run: int
    epoch: int
    at: EpochPosition
    here: EpochPosition = NO_PLACE
    holes: tuple[int, ...] = ()
    known: tuple[int, ...] = ()

    @property
    def start(self) -> EpochPosition:
        """Where the run must go on for this rank."""
        return self.at if self.here == NO_PLACE else self.here

    def is_after(self, other: "StartRun") -> bool:
        """Whether a rank that has said the other can say this now: it never goes back in a run."""
        if self == other or self.run != other.run:
            return self.run > other.run
        mine, its = self.start, other.start
        return (mine.step, mine.microbatch) >= (its.step, its.microbatch)


@dataclass(frozen=True, slots=True)
class SubmitTask:
    """A unit of work of a loop without balancing; `pin`: the only slot that may do it, or -1."""

    PAYLOADS: ClassVar[Payloads] = "none"
    run: int
    step: int
    pin: int
    pickled: bytes


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """Send this microbatch when it is complete."""

    PAYLOADS: ClassVar[Payloads] = "none"
    run: int
    rank: int
    step: int
    microbatch: int


@dataclass(frozen=True, slots=True)
class Ack:
    """This microbatch and all before it have been copied; their memory can go."""

    PAYLOADS: ClassVar[Payloads] = "none"
    run: int
    rank: int
    step: int
    microbatch: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask whether anybody is there; the answer has the same number. Clock as in WorkerBeat."""

    PAYLOADS: ClassVar[Payloads] = "none"
    number: int = 0
    ahead_us: int = 0
    error_us: int = -1


@dataclass(frozen=True, slots=True)
class GetStatus:
    """Ask for an Overview: somebody looks, who takes no part."""

    PAYLOADS: ClassVar[Payloads] = "none"
    number: int = 0


@dataclass(frozen=True, slots=True)
class RankBye:
    """The trainer process is done with the job."""

    PAYLOADS: ClassVar[Payloads] = "none"


# --- coordinator to rank


@dataclass(frozen=True, slots=True)
class Ready:
    """The job runs: samples in the source and the workers' fingerprint."""

    PAYLOADS: ClassVar[Payloads] = "none"
    count: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Batch:
    """A microbatch: its samples (a payload frame each), its holes, its weights, what comes after.

    `microbatches` is how many the rank has in this step; `after` the position once all of them are
    delivered; `costs` the sum per resource; `step_holes` the ordinals of all the step's holes, the
    same for every rank.
    """

    PAYLOADS: ClassVar[Payloads] = "items"
    run: int
    rank: int
    step: int
    microbatch: int
    microbatches: int
    weights: Weights
    costs: tuple[int, ...]
    after: EpochPosition
    items: tuple[BatchItem, ...]
    holes: tuple[Hole, ...]
    step_holes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The run has no step of this number: `steps` is the first that does not exist."""

    PAYLOADS: ClassVar[Payloads] = "none"
    run: int
    steps: int


@dataclass(frozen=True, slots=True)
class RunFailed:
    """The run cannot go on, and why; `kind` is "data", "plan", "worker" or "protocol"."""

    PAYLOADS: ClassVar[Payloads] = "none"
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to Ping: workers ready, bytes of payload held, what the run waits for.

    number: that of the Ping, 0 if there was none; clock_us: what the balancer's wall clock shows.
    """

    PAYLOADS: ClassVar[Payloads] = "none"
    workers: int
    held_bytes: int
    waiting: str
    number: int = 0
    clock_us: int = 0


# --- coordinator to either


@dataclass(frozen=True, slots=True)
class PeerRejected:
    """The peer cannot take part, and why."""

    PAYLOADS: ClassVar[Payloads] = "none"
    reason: str


@dataclass(frozen=True, slots=True)
class Bye:
    """The coordinator is done with the peer: a worker ends; a rank that left is not needed."""

    PAYLOADS: ClassVar[Payloads] = "none"


# --- coordinator to whom no session stands for: a worker's beat, somebody who looks


@dataclass(frozen=True, slots=True)
class HeartbeatAck:
    """The answer to a beat of this number: what the balancer's wall clock shows."""

    PAYLOADS: ClassVar[Payloads] = "none"
    number: int
    clock_us: int


FromWorker = (
    WorkerHello
    | WorkerReady
    | WorkerHeartbeat
    | ProbeDone
    | DecodeDone
    | SampleFailed
    | WorkerFailed
    | WorkerBye
)
ToWorker = Welcome | Lease | Revoke | UnknownPeer | PeerRejected | Bye
FromRank = RankHello | StartRun | SubmitTask | RequestBatch | Ack | Ping | GetStatus | RankBye
ToRank = Ready | Batch | EpochEnd | RunFailed | Pong | UnknownPeer | PeerRejected | Bye
ToOthers = HeartbeatAck | StatusReport
BetweenShells = ClearPayloadOffer
Message = FromWorker | ToWorker | FromRank | ToRank | ToOthers | BetweenShells

FROM_WORKER, TO_WORKER = get_args(FromWorker), get_args(ToWorker)
FROM_RANK, TO_RANK = get_args(FromRank), get_args(ToRank)
TO_OTHERS = get_args(ToOthers)
KINDS = {kind.__name__: kind for kind in get_args(Message)}
