"""Messages about samples under a lease: who measures or decodes them, the results, their payloads.

Payloads that ranks pull from workers (workers/serving/) are asked for over connections of their
own: `PullPayloads` and `PulledPayloads` never reach the coordinator.

The clear channel is a second connection for payloads, see transport/sealing.py; its offer is
handled by balancer/transport/link.py and balancer/server/clear_payloads.py and never reaches a
session.
"""

from .parts import (
    NO_HANDLES,
    Count,
    DecodedItem,
    Handles,
    Probed,
    SampleRef,
    WholeMicrobatch,
)
from .records import ArrayRecord, Integer

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


class ClearPayloadOffer(ArrayRecord, frozen=True):
    """Sent by a balancer under CURVE: open a second connection, to this port, for payloads.

    name, password: the identity for that connection; key: seals its messages (sealing.py). An empty
    offer, from either side, means over the clear channel that it works and is used from now on, and
    under CURVE that it is not used any more.
    """

    port: Integer
    name: bytes
    password: bytes
    key: bytes


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
