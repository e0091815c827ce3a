"""The byte budget: the payloads held, lent and under way, and which of them is needed last.

A payload that was sent and is not acknowledged is *lent*: a copy is in a trainer's memory, and the
one held here is of use only if the other is lost. So each payload counts once where memory is
short, and twice only while there is room. Of a payload that lies in a worker's memory there is no
copy: once it is lent, it is not held any more. What nobody needs of a run in a worker's memory lies
idle there as long as others of the run are needed, and counts as long.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from .sample import Sample
from .shared_payloads import SharedPayload, SharedPayloads, free_all

# A sample with its header, its payload and the bytes of that.
Decoded = tuple[Sample, bytes, Any, int]

# Before the first payload has arrived its size is guessed as this part of the budget.
FIRST_GUESS = 64


class ByteBudget:
    """Counts the bytes held, lent, and reserved for payloads under way."""

    def __init__(self, limit_bytes: int, shared: SharedPayloads | None = None) -> None:
        """`limit_bytes` is the budget, `shared` has the payloads in workers' memory."""
        self._lenders = SharedPayloads() if shared is None else shared
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.reserved_bytes = 0
        self.lent_bytes = 0
        self.largest_bytes = 0
        # Bytes that are lent and not held any more.
        self._only_lent_bytes = 0
        self._held: dict[int, Sample] = {}
        # Samples whose payloads a rank reads in a worker's memory.
        self._shared: dict[int, Sample] = {}

    @property
    def is_exceeded(self) -> bool:
        """True if payloads are held, and those held and lent exceed the budget.

        To drop others for what lies idle would help only where it is the rest of their runs.
        """
        return bool(self._held) and self.held_bytes + self.lent_bytes > self.limit_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes that are free for more samples to be decoded; below 0 where too much is used."""
        used = self.held_bytes + self._only_lent_bytes + self.reserved_bytes
        return self.limit_bytes - used - self._lenders.idle_bytes

    def reserve_room(self, samples: Sequence[Sample]) -> int:
        """Reserve the bytes of samples to be decoded; return how many, from the first, fit in."""
        before = room_bytes = self.room_bytes
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

    def release(self, samples: Iterable[Sample]) -> None:
        """Release the bytes reserved for samples."""
        released_bytes = 0
        for sample in samples:
            if sample.reserved:
                released_bytes += sample.reserved
                sample.reserved = 0
        self.reserved_bytes -= released_bytes

    def hold(self, decoded: Sequence[Decoded]) -> None:
        """Hold samples' payloads."""
        held, held_bytes, largest_bytes = self._held, 0, self.largest_bytes
        for sample, header, payload, nbytes in decoded:
            sample.header, sample.payload, sample.nbytes = header, payload, nbytes
            if type(payload) is SharedPayload:
                payload.is_held = True
            held[sample.ordinal] = sample
            held_bytes += nbytes
            if nbytes > largest_bytes:
                largest_bytes = nbytes
        self.held_bytes += held_bytes
        self.largest_bytes = largest_bytes

    def drop(self, samples: Iterable[Sample]) -> None:
        """Drop the payloads that are held of these samples."""
        held, dropped_bytes, lent_bytes = self._held, 0, 0
        for sample in samples:
            if held.pop(sample.ordinal, None) is None:
                continue
            dropped_bytes += sample.nbytes
            if sample.lent:
                lent_bytes += sample.nbytes
            payload, sample.payload = sample.payload, None
            if type(payload) is SharedPayload and sample.loan is None:
                payload.free()
        self.held_bytes -= dropped_bytes
        self._only_lent_bytes += lent_bytes

    def lend(self, samples: Iterable[Sample]) -> None:
        """Count the payloads that are held of samples as copied to a trainer, or as read there."""
        held, shared, lent_bytes, read_bytes = self._held, self._shared, 0, 0
        for sample in samples:
            payload = sample.payload
            if sample.lent or payload is None:
                continue
            sample.lent = True
            lent_bytes += sample.nbytes
            if type(payload) is SharedPayload:
                ordinal = sample.ordinal
                sample.loan, sample.payload = payload, None
                shared[ordinal] = sample
                del held[ordinal]
                read_bytes += sample.nbytes
        self.lent_bytes += lent_bytes
        self.held_bytes -= read_bytes
        self._only_lent_bytes += read_bytes

    def end_loans(self, samples: Iterable[Sample]) -> None:
        """Count payloads as lent no longer: they were acknowledged, or lost."""
        ended_bytes, dropped_bytes, loans = 0, 0, list[SharedPayload]()
        for sample in samples:
            if not sample.lent:
                continue
            sample.lent = False
            ended_bytes += sample.nbytes
            if sample.payload is None:
                dropped_bytes += sample.nbytes
            if sample.loan is not None:
                loans.append(sample.loan)
                sample.loan = None
                del self._shared[sample.ordinal]
        self.lent_bytes -= ended_bytes
        self._only_lent_bytes -= dropped_bytes
        free_all(loans)

    def let_all_go(self) -> None:
        """Free what lies in workers' memory: the run is over."""
        self.drop([*self._held.values()])
        self.end_loans([*self._shared.values()])

    def held_of(self, worker: bytes) -> list[Sample]:
        """Return the held samples whose payloads lie in a worker's memory."""
        return [
            sample
            for sample in self._held.values()
            if isinstance(sample.payload, SharedPayload) and sample.payload.run.worker == worker
        ]

    def latest_copy(self) -> Sample | None:
        """Return the held sample that is lent and needed last, None if none is lent and held."""
        return max((s for s in self._held.values() if s.lent), key=_lateness, default=None)

    def latest(self) -> Sample:
        """Return the held sample that is needed last."""
        return max(self._held.values(), key=_lateness)

    @property
    def _usual_bytes(self) -> int:
        """The size that a sample is expected to have where nobody has said it."""
        return self.largest_bytes or max(1, self.limit_bytes // FIRST_GUESS)


def _lateness(sample: Sample) -> tuple[bool, int, int, int]:
    """Order payloads by how late they are needed; what is not planned yet comes last of all."""
    return sample.step < 0, *sample.position, sample.ordinal
