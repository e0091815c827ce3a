"""A sample on its way through the balancer."""

from operator import attrgetter

import msgspec

from .shared_payloads import SharedPayload

# (step, microbatch, rank): sorts by need.
Place = tuple[int, int, int]
# The place of a sample that is not planned.
NOWHERE: Place = (-1, -1, -1)


class Sample(msgspec.Struct, gc=False):
    """A sample of an epoch, from its first lease until its microbatch is acknowledged.

    `place` is where it is needed, one object for all samples of a microbatch.
    `nbytes` is the payload's expected size until it arrives, then its size; `reserved` the bytes of
    the budget that are reserved while it is leased for decoding. `settled` means that it was
    decoded once or is a hole; `reason` why it is a hole, `source` the file it is in where a worker
    has said so, `fatal` that the hole ends the run when its microbatch is due. `lent` means that a
    rank was sent it and has not acknowledged it; `loan` is what it was sent, where that lies in a
    worker's memory. `crash_count` is how many workers died or hung
    while they worked on it. `named_by` is the worker that gave the key; `claims` are the keys by
    worker, once one has contradicted it, `contradictions` times.
    """

    ordinal: int
    index: int
    key: str = ""
    cost: tuple[int, ...] | None = None
    nbytes: int = 0
    place: Place = NOWHERE
    header: bytes = b""
    payload: object = None
    reserved: int = 0
    settled: bool = False
    reason: str = ""
    source: str = ""
    fatal: bool = False
    crash_count: int = 0
    lent: bool = False
    loan: SharedPayload | None = None
    named_by: bytes = b""
    claims: dict[bytes, str] | None = None
    contradictions: int = 0

    @property
    def step(self) -> int:
        """The number of the step that needs it, -1 where it is not planned."""
        return self.place[0]

    @property
    def microbatch(self) -> int:
        """The number of the microbatch in its rank's step."""
        return self.place[1]

    @property
    def rank(self) -> int:
        """The rank that needs it."""
        return self.place[2]

    @property
    def position(self) -> tuple[int, int]:
        """The step and the microbatch that need it."""
        return self.place[:2]

    @property
    def is_missing(self) -> bool:
        """True if it is neither held nor lent nor a hole."""
        return self.payload is None and not self.lent and not self.reason


# What loops over many samples ask for, without a line of Python for each.
ORDINAL, PLACE = attrgetter("ordinal"), attrgetter("place")
