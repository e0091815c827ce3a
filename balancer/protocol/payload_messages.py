"""Messages about samples under a lease and in microbatches: who works on them, who gets them.

Payloads that ranks pull from workers (workers/serving/) are asked for over connections of their
own: `PullPayloads` and `PulledPayloads` never reach the coordinator.
"""

from .parts import (
    BatchItem,
    Count,
    DecodedItem,
    EpochPosition,
    Hole,
    PayloadServer,
    Probed,
    SampleRef,
    Weights,
)
from .records import ArrayRecord, Integer


class Revoke(ArrayRecord, frozen=True):
    """The rest of a lease is not wanted any more."""

    lease: Integer


class PayloadsFreed(ArrayRecord, frozen=True):
    """Payloads of these serials, which the worker keeps, are not wanted any more."""

    serials: tuple[Integer, ...]


class Lease(ArrayRecord, frozen=True):
    """The right to probe or decode some samples; `kind` is "probe" or "decode".

    freed: serials as in PayloadsFreed, which travel with it. alone: workers died or hung on its
    sample, which is to be worked on while no other is.
    """

    lease: Integer
    kind: str
    epoch: Integer
    refs: tuple[SampleRef, ...]
    freed: tuple[Integer, ...] = ()
    alone: bool = False


class ProbeDone(ArrayRecord, frozen=True):
    """Costs found under a lease; the results may be split over several messages.

    usual_us: how long one of them took as a rule, -1 if that is not said.
    """

    lease: Integer
    results: tuple[Probed, ...]
    usual_us: Integer = -1


class DecodeDone(ArrayRecord, frozen=True):
    """Samples decoded under a lease; the results may be split over several messages.

    usual_us: as in ProbeDone.
    """

    lease: Integer
    items: tuple[DecodedItem, ...]
    usual_us: Integer = -1


class Ack(ArrayRecord, frozen=True):
    """This microbatch and all before it were copied; the balancer may free their memory.

    waited_ms: what its process has waited for microbatches, in all; for diagnostics only.
    """

    run: Integer
    rank: Integer
    step: Integer
    microbatch: Integer
    waited_ms: Integer = 0


class RequestBatch(ArrayRecord, frozen=True):
    """Request a microbatch; it is sent when it is complete.

    lost: it was sent, and some of its payloads could not be pulled: it is to be decoded again.
    """

    run: Integer
    rank: Integer
    step: Integer
    microbatch: Integer
    lost: bool = False


class Batch(ArrayRecord, frozen=True):
    """A microbatch: its samples, its holes, its weights.

    microbatches: the number that the rank has in this step. costs: the sum per resource, and
    padding, what of it is padding. after: the position once all microbatches of the step are
    delivered. step_holes: the ordinals of all holes of the step, the same for every rank. servers:
    the workers from which payloads are pulled.
    """

    run: Integer
    rank: Integer
    step: Integer
    microbatch: Integer
    microbatches: Integer
    weights: Weights
    costs: tuple[Integer, ...]
    padding: tuple[Integer, ...]
    after: EpochPosition
    items: tuple[BatchItem, ...]
    holes: tuple[Hole, ...]
    step_holes: tuple[Integer, ...]
    servers: tuple[PayloadServer, ...]


class ServePayloads(ArrayRecord, frozen=True):
    """Keep decoded payloads for ranks to pull, and announce their serials.

    token: what ranks name this worker by. most_bytes: what may be kept; 0: send all inline. public,
    secret: what ranks connect with, as in PayloadServer; of a key pair only the public key.
    """

    token: Count
    most_bytes: Count
    public: bytes
    secret: bytes


class StopServing(ArrayRecord, frozen=True):
    """Send payloads inline from now on, and why; what was announced may still be pulled."""

    reason: str


class PullFailed(ArrayRecord, frozen=True):
    """Payloads of the worker with this token cannot be pulled by this rank, and why.

    is_rubbish: they came, and were not what their headers say.
    """

    token: Count
    reason: str
    is_rubbish: bool


class PullPayloads(ArrayRecord, frozen=True):
    """Sent by a rank to a worker: send these payloads; `number` comes back with them."""

    number: Count
    token: Count
    serials: tuple[Count, ...]


class PulledPayloads(ArrayRecord, frozen=True):
    """The answer to PullPayloads: those that are there, a payload frame each; others are gone."""

    number: Count
    serials: tuple[Count, ...]
