"""How workers come to a job, and how what they keep comes to trainers: pulled, or relayed.

A worker says hello (JoinPool), is given the job (OpenJob), opens its source and says what planning
has to know (JobOpened); then the pool's messages go back and forth. A trainer pulls frames from the
workers over connections of their own (PullFrames); what it cannot pull the balancer relays. Every
message may be repeated, lost or late.
"""

from ..protocol.parts import Count, PayloadServer
from ..protocol.records import VERSION, ArrayRecord, Integer


class JoinPool(ArrayRecord, frozen=True):
    """A worker process has started; `incarnation` grows with each that has this name.

    transport: how frames travel, and why, as text for diagnostics. address, key: where trainers
    pull, as in PayloadServer; "" where nothing is served. most_bytes: what the worker may keep.
    run: for which its trainer has started it; -1: for any.
    """

    name: str
    incarnation: Integer
    transport: str
    address: str
    key: bytes
    most_bytes: Count
    version: str = VERSION
    run: Integer = -1


class OpenJob(ArrayRecord, frozen=True):
    """The job: JSON of its JobSpec, and of how its batches are laid out.

    token, public, secret: whom to answer a pull, as in PayloadServer; of a pair only the public key
    (secret: b""). Repeated with the same number it asks whether the source is open.
    """

    number: Count
    job: str
    layout: str
    token: Count = 0
    public: bytes = b""
    secret: bytes = b""


class JobOpened(ArrayRecord, frozen=True):
    """The worker's source is open: all that planning has to know of it.

    columns: the costs of all samples, an array of integers of 1, 2, 4 or 8 bytes a resource; none
    where they are not known.
    loads_first: a sample has to be loaded to learn its cost. names: samples have names of their
    own; else they are named by their index.
    """

    number: Count
    count: Count
    fingerprint: str
    columns: tuple[bytes, ...]
    loads_first: bool
    names: bool


class JobNotOpened(ArrayRecord, frozen=True):
    """The worker cannot take part in the job, and why; `number` is that of OpenJob."""

    number: Count
    reason: str


class LeavePool(ArrayRecord, frozen=True):
    """The worker ends: what it has is to be made elsewhere.

    workers: of a trainer the names of those that it had started, and has ended.
    """

    workers: tuple[str, ...] = ()


# --- frames


class PullFrames(ArrayRecord, frozen=True):
    """Trainer to worker: send these frames of what is kept under a serial; none named: all.

    The balancer asks so, too, for a trainer that cannot pull; its numbers are the serials.
    """

    number: Count
    token: Count
    serial: Count
    frames: tuple[Count, ...]


class PulledFrames(ArrayRecord, frozen=True):
    """The answer: so many frames follow, those that were asked for; 0 where it is gone."""

    number: Count
    frames: Count


class NameSamples(ArrayRecord, frozen=True):
    """Balancer to worker: say what samples are called, by their indexes in the source."""

    indexes: tuple[Count, ...]


class SampleNames(ArrayRecord, frozen=True):
    """The answer: a name for each."""

    indexes: tuple[Count, ...]
    names: tuple[str, ...]


class WorkersAt(ArrayRecord, frozen=True):
    """Balancer to trainer: where the workers are that later messages name by their tokens."""

    servers: tuple[PayloadServer, ...]


class RelayedPiece(ArrayRecord, frozen=True):
    """Balancer to trainer: a piece of a microbatch (see GiveBatch), in so many frames behind it."""

    run: Count
    rank: Count
    index: Count
    version: Count
    piece: Count
    frames: Count


FROM_WORKER = (JoinPool, JobOpened, JobNotOpened, LeavePool, PulledFrames, SampleNames)
TO_WORKER = (OpenJob, PullFrames, NameSamples)
TO_TRAINER = (WorkersAt, RelayedPiece)
KINDS = (*FROM_WORKER, *TO_WORKER, *TO_TRAINER)
# Kinds behind whose header so many frames follow as its `frames` says.
WITH_FRAMES = (PulledFrames, RelayedPiece)
# Kinds that travel with others to the same peer; see Several.
SMALL_KINDS = (WorkersAt, PullFrames)
