"""Every message of the protocol: a frozen record each, and who says it to whom.

Theory of operation. Three parties talk: workers, ranks, and the coordinator in the balancer. A
worker says hello, is told the job, prepares its source and reports ready; then it is given leases
(samples to probe or to decode) and answers sample by sample. A rank says hello with the job, begins
a run (an epoch, from a position), asks for microbatches some way ahead, and acknowledges each that
it has copied. Everything can be said twice: asking again and answering again change nothing.

Payloads (decoded samples) are not part of a record: they travel as raw frames behind it.
`PAYLOAD_FRAMES` says which kinds carry any.
"""

from typing import Literal, get_args

from .clear_channel_messages import ClearPayloadOffer as ClearPayloadOffer
from .parts import NO_PLACE as NO_PLACE
from .parts import BatchItem as BatchItem
from .parts import Cost as Cost
from .parts import EpochPosition as EpochPosition
from .parts import Hole as Hole
from .parts import Probed as Probed
from .parts import SampleRef as SampleRef
from .parts import Weights as Weights
from .records import ArrayRecord, Integer
from .status_messages import StatusReport as StatusReport
from .status_messages import TrainerStatus as TrainerStatus
from .status_messages import WorkerStatus as WorkerStatus

PROTOCOL_VERSION = 2


# --- worker to coordinator


class WorkerHello(ArrayRecord, frozen=True):
    """A worker process is there; `name` is its slot, `incarnation` grows with every restart.

    software: what it runs, as text for people.
    """

    name: str
    incarnation: Integer
    host: str
    slot: Integer
    software: str = ""


class WorkerReady(ArrayRecord, frozen=True):
    """The worker's source is open: its number of samples, and what shaped them.

    `number` is that of the Welcome that it answers; it is said again when that is.
    """

    count: Integer
    fingerprint: str
    number: Integer = 0


class WorkerHeartbeat(ArrayRecord, frozen=True):
    """The worker process named is alive; a `number` other than 0 asks for a Heard.

    probe_ms, decode_ms: how long it has been at work, in all. ahead_us, error_us: how far its wall
    clock is ahead of the balancer's (-1: not known). These are for people who look; nothing is
    decided by them. lease, ordinal: the sample that it works on (0, -1: none): one that it works on
    for longer than a lease lasts hangs; said twice, none: what it was given before was lost.
    """

    name: str
    incarnation: Integer
    number: Integer = 0
    probe_ms: Integer = 0
    decode_ms: Integer = 0
    ahead_us: Integer = 0
    error_us: Integer = -1
    lease: Integer = 0
    ordinal: Integer = -1


class ProbeDone(ArrayRecord, frozen=True):
    """Costs found under a lease; the results may come in several messages."""

    lease: Integer
    results: tuple[Probed, ...]


class DecodeDone(ArrayRecord, frozen=True):
    """One decoded sample; `cost` as in Probed, empty when the sample was probed before."""

    lease: Integer
    ordinal: Integer
    key: str
    cost: tuple[Cost, ...]
    header: bytes


class SampleFailed(ArrayRecord, frozen=True):
    """A sample that cannot be used; `io` marks an I/O error that outlived its retries."""

    lease: Integer
    ordinal: Integer
    key: str
    reason: str
    io: bool


class WorkerFailed(ArrayRecord, frozen=True):
    """The worker cannot serve this job at all, and why; `number` as in WorkerReady."""

    reason: str
    number: Integer = 0


class WorkerBye(ArrayRecord, frozen=True):
    """The worker ends of its own accord."""


# --- coordinator to worker


class Welcome(ArrayRecord, frozen=True):
    """The job: a JSON description of the source (empty where the worker was born with it).

    Said again with the same `number` it only asks whether the worker is ready.
    """

    job: str
    number: Integer = 0


class Lease(ArrayRecord, frozen=True):
    """The right to probe or decode some samples; `kind` is "probe" or "decode"."""

    lease: Integer
    kind: str
    epoch: Integer
    refs: tuple[SampleRef, ...]


class Revoke(ArrayRecord, frozen=True):
    """The rest of a lease is no longer wanted."""

    lease: Integer


class UnknownPeer(ArrayRecord, frozen=True):
    """The answer to a peer that is not known (any more): it must say hello again."""


# --- rank to coordinator


class RankHello(ArrayRecord, frozen=True):
    """A trainer process is there, playing these data-parallel ranks, with this job (JSON)."""

    ranks: tuple[Integer, ...]
    job: str


class StartRun(ArrayRecord, frozen=True):
    """Start (or join) a run: an epoch from a position. All ranks must name the same run.

    here: how far the rank has got since, where it comes back to a balancer that has forgotten it.
    holes: samples that cannot be used; known: the steps of which the rank has had some where holes
    are allowed: these are all that such a step has.
    """

    run: Integer
    epoch: Integer
    at: EpochPosition
    here: EpochPosition = NO_PLACE
    holes: tuple[Integer, ...] = ()
    known: tuple[Integer, ...] = ()

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


class SubmitTask(ArrayRecord, frozen=True):
    """A unit of work of a loop without balancing; `pin`: the only slot that may do it, or -1."""

    run: Integer
    step: Integer
    pin: Integer
    pickled: bytes


class RequestBatch(ArrayRecord, frozen=True):
    """Send this microbatch when it is complete."""

    run: Integer
    rank: Integer
    step: Integer
    microbatch: Integer


class Ack(ArrayRecord, frozen=True):
    """This microbatch and all before it have been copied; their memory can go."""

    run: Integer
    rank: Integer
    step: Integer
    microbatch: Integer


class Ping(ArrayRecord, frozen=True):
    """Ask whether anybody is there; the answer has the same number. Clock as in WorkerBeat."""

    number: Integer = 0
    ahead_us: Integer = 0
    error_us: Integer = -1


class GetStatus(ArrayRecord, frozen=True):
    """Ask for an Overview: somebody looks, who takes no part."""

    number: Integer = 0


class RankBye(ArrayRecord, frozen=True):
    """The trainer process is done with the job."""


# --- coordinator to rank


class Ready(ArrayRecord, frozen=True):
    """The job runs: samples in the source and the workers' fingerprint."""

    count: Integer
    fingerprint: str


class Batch(ArrayRecord, frozen=True):
    """A microbatch: its samples (a payload frame each), its holes, its weights, what comes after.

    `microbatches` is how many the rank has in this step; `after` the position once all of them are
    delivered; `costs` the sum per resource; `step_holes` the ordinals of all the step's holes, the
    same for every rank.
    """

    run: Integer
    rank: Integer
    step: Integer
    microbatch: Integer
    microbatches: Integer
    weights: Weights
    costs: tuple[Integer, ...]
    after: EpochPosition
    items: tuple[BatchItem, ...]
    holes: tuple[Hole, ...]
    step_holes: tuple[Integer, ...] = ()


class EpochEnd(ArrayRecord, frozen=True):
    """The run has no step of this number: `steps` is the first that does not exist."""

    run: Integer
    steps: Integer


class RunFailed(ArrayRecord, frozen=True):
    """The run cannot go on, and why; `kind` is "data", "plan", "worker" or "protocol"."""

    kind: str
    reason: str


class Pong(ArrayRecord, frozen=True):
    """The answer to Ping: workers ready, bytes of payload held, what the run waits for.

    number: that of the Ping, 0 if there was none; clock_us: what the balancer's wall clock shows.
    """

    workers: Integer
    held_bytes: Integer
    waiting: str
    number: Integer = 0
    clock_us: Integer = 0


# --- coordinator to either


class PeerRejected(ArrayRecord, frozen=True):
    """The peer cannot take part, and why."""

    reason: str


class Bye(ArrayRecord, frozen=True):
    """The coordinator is done with the peer: a worker ends; a rank that left is not needed."""


# --- coordinator to whom no session stands for: a worker's beat, somebody who looks


class HeartbeatAck(ArrayRecord, frozen=True):
    """The answer to a beat of this number: what the balancer's wall clock shows."""

    number: Integer
    clock_us: Integer


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
# How many payload frames follow a kind's header: "one", or one for each of its "items". The kinds
# that are not listed have none.
PAYLOAD_FRAMES: dict[type[Message], Literal["one", "items"]] = {DecodeDone: "one", Batch: "items"}
