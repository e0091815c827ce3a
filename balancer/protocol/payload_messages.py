"""Messages about samples under a lease: who measures or decodes them, the results, their payloads.

The clear channel is a second connection for payloads, see transport/sealing.py; its offer is
handled by balancer/transport/link.py and balancer/server/clear_payloads.py and never reaches a
session.
"""

from .parts import DecodedItem, Handles, Probed, SampleRef
from .records import ArrayRecord, Integer


class Revoke(ArrayRecord, frozen=True):
    """The rest of a lease is not wanted any more."""

    lease: Integer


class FreeSlots(ArrayRecord, frozen=True):
    """Payloads of these serials, which lie in the worker's memory, are not wanted any more.

    readers: the ranks (by their names as peers) that were sent handles of them, and may still read
    them; empty: any rank may.
    """

    serials: tuple[Integer, ...]
    readers: tuple[bytes, ...]


class Lease(ArrayRecord, frozen=True):
    """The right to probe or decode some samples; `kind` is "probe" or "decode".

    freed: messages for the same worker that travel with it.
    """

    lease: Integer
    kind: str
    epoch: Integer
    refs: tuple[SampleRef, ...]
    freed: tuple[FreeSlots, ...] = ()


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

    usual_us: as in ProbeDone.
    """

    lease: Integer
    items: tuple[DecodedItem, ...]
    handles: Handles = ()
    usual_us: Integer = -1
