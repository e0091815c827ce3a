"""A sample on its way through the balancer, its payload, and the byte budget of all payloads.

A decoded payload stays with its worker, and ranks pull it from there; where they cannot it comes
here as a frame. What a worker keeps it is told to forget once, when nobody needs it any more:
whether it was delivered, dropped, or never wanted.

A payload is *held* until it was sent, here or by its worker, and *sent* until it is acknowledged:
then it is in a trainer's memory, or still to be pulled. Either counts once in the budget.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec

from ...protocol.parts import DecodedItem, PayloadServer

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
        # Serials by worker; those that it was not told of yet.
        self.kept: dict[bytes, set[int]] = {}
        self.freed: dict[bytes, list[int]] = {}

    def announce(
        self, worker: bytes, server: PayloadServer | None, item: DecodedItem
    ) -> Payload | None:
        """Return a payload that a worker keeps; None if it is known: the message was repeated."""
        kept = self.kept.setdefault(worker, set())
        if item.serial in kept:
            return None
        kept.add(item.serial)
        return Payload(item.header, item.nbytes, None, worker, server, item.serial)

    def free(self, payload: Payload) -> None:
        """Have the worker forget a payload, unless that was forgotten itself."""
        kept = self.kept.get(payload.worker)
        if kept is not None and payload.serial in kept:
            kept.discard(payload.serial)
            self.freed.setdefault(payload.worker, []).append(payload.serial)


# Before the first payload has arrived its size is guessed as this part of the budget.
FIRST_GUESS = 64


class ByteBudget:
    """Counts the bytes held, sent, and reserved for payloads under way."""

    def __init__(self, limit_bytes: int, kept: WorkerPayloads) -> None:
        """`limit_bytes` is the budget, `kept` has the payloads that workers keep."""
        self._kept = kept
        self.limit_bytes = limit_bytes
        self.held_bytes = self.sent_bytes = self.reserved_bytes = self.largest_bytes = 0
        self.held: dict[int, Sample] = {}
        self._sent: dict[int, Sample] = {}

    @property
    def is_exceeded(self) -> bool:
        """True if payloads are held, and those held and sent exceed the budget."""
        return bool(self.held) and self.held_bytes + self.sent_bytes > self.limit_bytes

    def reserve_room(self, samples: Sequence[Sample]) -> int:
        """Reserve the bytes of samples to be decoded; return how many, from the first, fit in."""
        used_bytes = self.held_bytes + self.sent_bytes + self.reserved_bytes
        before = room_bytes = self.limit_bytes - used_bytes  # below 0 where too much is used
        usual_bytes = self._usual_bytes
        fitting = 0
        for sample in samples:
            nbytes = sample.nbytes or usual_bytes
            if nbytes > room_bytes:
                break
            room_bytes -= nbytes
            sample.reserved = nbytes
            fitting += 1
        self.reserved_bytes += before - room_bytes
        return fitting

    def reserve(self, sample: Sample) -> None:
        """Reserve the bytes of a sample that is leased for decoding, whether they fit in or not."""
        sample.reserved = sample.nbytes or self._usual_bytes
        self.reserved_bytes += sample.reserved

    def release_reserved(self, samples: Iterable[Sample]) -> None:
        """Release the bytes reserved for samples."""
        released_bytes = 0
        for sample in samples:
            released_bytes += sample.reserved
            sample.reserved = 0
        self.reserved_bytes -= released_bytes

    def hold(self, decoded: Iterable[tuple[Sample, Payload]]) -> None:
        """Hold samples' payloads."""
        for sample, payload in decoded:
            sample.payload, sample.nbytes, payload.is_held = payload, payload.nbytes, True
            self.held[sample.ordinal] = sample
            self.held_bytes += payload.nbytes
            self.largest_bytes = max(self.largest_bytes, payload.nbytes)

    def drop(self, samples: Iterable[Sample]) -> None:
        """Drop the payloads that are held of these samples."""
        for sample in samples:
            if self.held.pop(sample.ordinal, None) is not None:
                self.held_bytes -= sample.nbytes
                self._forget_payload(sample)

    def mark_sent(self, samples: Iterable[Sample]) -> None:
        """Count the payloads that are held of samples as sent; a frame is the rank's from now."""
        for sample in samples:
            if self.held.pop(sample.ordinal, None) is None:
                continue
            sample.is_sent = True
            self._sent[sample.ordinal] = sample
            self.held_bytes -= sample.nbytes
            self.sent_bytes += sample.nbytes
            if sample.payload is not None and not sample.payload.serial:
                sample.payload = None

    def forget_sent(self, samples: Iterable[Sample]) -> None:
        """Count payloads as sent no longer: they were acknowledged, or lost."""
        for sample in samples:
            if self._sent.pop(sample.ordinal, None) is not None:
                sample.is_sent = False
                self.sent_bytes -= sample.nbytes
                self._forget_payload(sample)

    def forget_all(self) -> None:
        """Have workers forget all payloads: the run is over."""
        self.drop([*self.held.values()])
        self.forget_sent([*self._sent.values()])

    def latest(self) -> Sample:
        """Return the held sample that is needed last; what is not planned yet comes last of all."""
        return max(self.held.values(), key=lambda s: (s.step < 0, *s.position, s.ordinal))

    def _forget_payload(self, sample: Sample) -> None:
        payload, sample.payload = sample.payload, None
        if payload is not None and payload.serial:
            self._kept.free(payload)

    @property
    def _usual_bytes(self) -> int:
        """The size that a sample is expected to have where nobody has said it."""
        return self.largest_bytes or max(1, self.limit_bytes // FIRST_GUESS)
