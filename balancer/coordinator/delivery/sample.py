"""A sample on its way through the balancer, and its payload.

A decoded payload stays with its worker, and ranks pull it from there; where they cannot it comes
here as a frame. What a worker keeps it is told to forget once, when nobody needs it any more:
whether it was delivered, dropped, or never wanted.
"""

from operator import attrgetter

import msgspec

from ...protocol.messages import DecodedItem, PayloadServer

# (step, microbatch, rank): sorts by need.
Place = tuple[int, int, int]
# The place of a sample that is not planned.
NOWHERE: Place = (-1, -1, -1)


class Payload(msgspec.Struct, gc=False, eq=False):
    """A decoded payload: its layout, its size, and a frame of bytes, or where it is pulled from.

    worker: the peer that has it under this serial; server: what ranks connect with. is_held: it is,
    or was, part of the epoch's run.
    """

    header: bytes
    nbytes: int
    frame: object = None
    worker: bytes = b""
    server: PayloadServer | None = None
    serial: int = 0
    is_held: bool = False


class SampleFailure(msgspec.Struct, frozen=True):
    """Why a sample is a hole, and the file it is in where a worker has said so.

    fatal: it ends the run when its microbatch is due.
    """

    reason: str
    source: str = ""
    fatal: bool = False


class Sample(msgspec.Struct, gc=False):
    """A sample of an epoch, from its first lease until its microbatch is acknowledged.

    `place` is where it is needed, one object for all samples of a microbatch. `nbytes` is the
    payload's expected size until it arrives, then its size; `reserved` the bytes of the budget that
    are reserved while it is leased for decoding. `settled` means that it was decoded once or is a
    hole, `is_sent` that a rank was sent it and has not acknowledged it. `crash_count` is how many
    workers died or hung while they worked on it.
    """

    ordinal: int
    index: int
    key: str = ""
    cost: tuple[int, ...] | None = None
    nbytes: int = 0
    place: Place = NOWHERE
    payload: Payload | None = None
    failure: SampleFailure | None = None
    reserved: int = 0
    settled: bool = False
    is_sent: bool = False
    crash_count: int = 0

    @property
    def step(self) -> int:
        """The number of the step that needs it, -1 where it is not planned."""
        return self.place[0]

    @property
    def position(self) -> tuple[int, int]:
        """The step and the microbatch that need it."""
        return self.place[:2]

    @property
    def is_missing(self) -> bool:
        """True if it is neither held nor sent nor a hole."""
        return self.payload is None and not self.is_sent and self.failure is None


# What loops over many samples ask for, without a line of Python for each.
ORDINAL, PLACE, NBYTES = attrgetter("ordinal"), attrgetter("place"), attrgetter("nbytes")


class WorkerPayloads:
    """The payloads that workers have announced and keep, and what they may forget of them."""

    def __init__(self) -> None:
        self._kept: dict[bytes, set[int]] = {}
        self._freed: dict[bytes, list[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def announce(
        self, worker: bytes, server: PayloadServer | None, item: DecodedItem
    ) -> Payload | None:
        """Return a payload that a worker keeps; None if it is known: the message was repeated."""
        kept = self._kept.setdefault(worker, set())
        if item.serial in kept:
            return None
        kept.add(item.serial)
        return Payload(item.header, item.nbytes, None, worker, server, item.serial)

    def free(self, payload: Payload) -> None:
        """Have the worker forget a payload, unless that was forgotten itself."""
        kept = self._kept.get(payload.worker)
        if kept is not None and payload.serial in kept:
            kept.discard(payload.serial)
            self._freed.setdefault(payload.worker, []).append(payload.serial)

    def free_unknown(self, worker: bytes, serials: list[int]) -> None:
        """Have a worker forget what it has announced in vain."""
        if serials:
            self._freed.setdefault(worker, []).extend(serials)

    def forget_worker(self, worker: bytes) -> None:
        """Forget a worker's payloads: it is gone, or forgets them all when it comes back."""
        self._kept.pop(worker, None)

    def workers_to_tell(self) -> list[bytes]:
        """Return the workers that may forget payloads."""
        return list(self._freed)

    def take_freed(self, worker: bytes) -> tuple[int, ...]:
        """Return, once, the serials of the payloads that a worker may forget."""
        return tuple(self._freed.pop(worker, ()))
