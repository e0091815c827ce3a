"""Messages about samples under a lease and in microbatches: who works on them, who gets them.

To handle a message costs more than what it says of a small microbatch. So several microbatches are
requested, acknowledged and sent in one message, where that delays none.

Payloads that ranks pull from workers (workers/serving/) are asked for over connections of their
own: `PullPayloads` and `PulledPayloads` never reach the coordinator.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import structs

from .parts import (
    NO_HANDLES,
    BatchItem,
    Count,
    DecodedItem,
    EpochPosition,
    Handles,
    Hole,
    PayloadServer,
    Probed,
    SampleRef,
    Weights,
    WholeMicrobatch,
)
from .records import ArrayRecord, Integer

# Microbatches that one message may request.
MOST_REQUESTED = 1024
# More microbatches than these are not asked for ahead of need, however many a step has.
MOST_AHEAD = 256
RequestCount = Annotated[int, msgspec.Meta(ge=1, le=MOST_REQUESTED)]
# In place of a sample's header: it is part of a batch whose header is at a sample before it.
LAID_OUT = b""


class Revoke(ArrayRecord, frozen=True):
    """The rest of a lease is not wanted any more."""

    lease: Integer


class FreeSlots(ArrayRecord, frozen=True):
    """Runs of these serials, which lie in the worker's memory: no payload in them is wanted now.

    readers: the ranks (by their names as peers) that were sent handles of them, and may still read
    them; empty: any rank may.
    """

    serials: tuple[Integer, ...]
    readers: tuple[bytes, ...]


class Lease(ArrayRecord, frozen=True):
    """The right to probe or decode some samples; `kind` is "probe" or "decode".

    freed: messages for the same worker that travel with it. alone: workers died or hung on its
    sample, which is to be worked on while no other is. whole: microbatches all of whose samples it
    has, which the worker may lay out.
    """

    lease: Integer
    kind: str
    epoch: Integer
    refs: tuple[SampleRef, ...]
    freed: tuple[FreeSlots, ...] = ()
    alone: bool = False
    whole: tuple[WholeMicrobatch, ...] = ()


class ProbeDone(ArrayRecord, frozen=True):
    """Costs found under a lease; the results may be split over several messages.

    usual_us: how long one of them took as a rule, -1 if that is not said.
    """

    lease: Integer
    results: tuple[Probed, ...]
    usual_us: Integer = -1


class DecodeDone(ArrayRecord, frozen=True):
    """Samples decoded under a lease; the results may be split over several messages.

    A microbatch of which a worker had all samples may be laid out: it is one payload, of which each
    sample has a part, with the header of the batch at its first sample and LAID_OUT at the others.
    usual_us: as in ProbeDone.
    """

    lease: Integer
    items: tuple[DecodedItem, ...]
    handles: Handles = NO_HANDLES
    usual_us: Integer = -1


class Ack(ArrayRecord, frozen=True):
    """This microbatch and all before it were copied; the balancer may free their memory."""

    run: Integer
    rank: Integer
    step: Integer
    microbatch: Integer


class RequestBatch(ArrayRecord, frozen=True):
    """Request microbatches of a step, `count` from this one on; each is sent when it is complete.

    lost: they were sent, and handles in them were of no use: what these named is to be decoded
    again. ack: what the rank acknowledges as well, before it requests them.
    """

    run: Integer
    rank: Integer
    step: Integer
    microbatch: Integer
    count: RequestCount = 1
    lost: bool = False
    ack: Ack | None = None

    @property
    def microbatches(self) -> range:
        """The microbatches of the step."""
        return range(self.microbatch, self.microbatch + self.count)


class Batch(ArrayRecord, frozen=True):
    """A microbatch: its samples (a payload frame or a place each), its holes, its weights.

    microbatches: the number that the rank has in this step. costs: the sum per resource. after: the
    position once all microbatches of the step are delivered. step_holes: the ordinals of all holes
    of the step, the same for every rank. servers: the workers from which handles are pulled.
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
    step_holes: tuple[Integer, ...]
    handles: Handles
    servers: tuple[PayloadServer, ...]


class Batches(ArrayRecord, frozen=True):
    """Microbatches that were ready together, in the order of need; all their payloads in runs."""

    batches: tuple[Batch, ...]


class ServePayloads(ArrayRecord, frozen=True):
    """Keep decoded payloads for ranks to pull, and announce them by handles with this token.

    most_bytes: what may be kept; 0: send all inline. public, secret: what ranks connect with, as in
    PayloadServer; of a key pair only the public key.
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


def requests_in_ranges(
    run: int, ranks: Sequence[int], positions: Iterable[tuple[int, int, int]]
) -> list[RequestBatch]:
    """Return the requests for microbatches at (step, microbatch, number among `ranks`), in order.

    >>> (found,) = requests_in_ranges(run=0, ranks=(4,), positions=[(2, 0, 0), (2, 1, 0)])
    >>> found.rank, found.microbatch, found.count
    (4, 0, 2)
    """
    # By rank and step the last range: its first microbatch, and how many it has.
    last: dict[tuple[int, int], list[int]] = {}
    ranges: list[tuple[int, int, list[int]]] = []
    for step, microbatch, index in positions:
        known = last.get((step, index))
        if known is not None and known[0] + known[1] == microbatch and known[1] < MOST_REQUESTED:
            known[1] += 1
        else:
            last[step, index] = known = [microbatch, 1]
            ranges.append((step, index, known))
    return [RequestBatch(run, ranks[n], step, first, count) for step, n, (first, count) in ranges]


def with_acks(acks: Iterable[Ack], requests: Iterable[RequestBatch]) -> list[Ack | RequestBatch]:
    """Return acknowledgements and requests, each of the former in the first request of its rank.

    >>> with_acks([Ack(0, 7, 1, 0)], [RequestBatch(0, 7, 3, 0), RequestBatch(0, 7, 4, 0)])[0].ack
    Ack(run=0, rank=7, step=1, microbatch=0)
    """
    of_rank = {ack.rank: ack for ack in acks}
    messages: list[Ack | RequestBatch] = []
    for request in requests:
        ack = of_rank.pop(request.rank, None)
        messages.append(request if ack is None else structs.replace(request, ack=ack))
    return [*of_rank.values(), *messages]


def microbatches_ahead(prefetch: int, microbatches: int) -> int:
    """Return how many are asked for ahead, of all ranks; `microbatches`: of a step, 0 if unknown.

    >>> microbatches_ahead(2, 4), microbatches_ahead(2, 0), microbatches_ahead(4, 100)
    (8, 2, 256)
    """
    return max(prefetch, min(prefetch * microbatches, MOST_AHEAD))
