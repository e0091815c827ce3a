"""The byte budget: the payloads held, lent and under way, and which of them is needed last.

A payload that was sent and is not acknowledged is *lent*: a copy is in a trainer's memory, and the
one held here is of use only if the other is lost. So each payload counts once where memory is
short, and twice only while there is room. Of a payload that lies in a worker's memory there is no
copy: once it is lent, it is not held any more. What nobody needs of a run in a worker's memory lies
idle there as long as others of the run are needed, and counts as long.
"""

from .sample import Sample
from .shared_payloads import SharedPayload, SharedPayloads, let_go

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

    def has_room(self, sample: Sample) -> bool:
        """Return whether a sample can be decoded within the budget."""
        used = self.held_bytes + self._only_lent_bytes + self.reserved_bytes
        used += self._lenders.idle_bytes
        return used + self._expected(sample) <= self.limit_bytes

    def reserve(self, sample: Sample) -> None:
        """Reserve the bytes of a sample that is leased for decoding."""
        sample.reserved = self._expected(sample)
        self.reserved_bytes += sample.reserved

    def release(self, sample: Sample) -> None:
        """Release the bytes reserved for a sample."""
        self.reserved_bytes -= sample.reserved
        sample.reserved = 0

    def hold(self, sample: Sample, header: bytes, payload: object, nbytes: int) -> None:
        """Hold a sample's payload."""
        sample.header, sample.payload, sample.nbytes = header, payload, nbytes
        if isinstance(payload, SharedPayload):
            payload.is_held = True
        self.largest_bytes = max(self.largest_bytes, nbytes)
        self.held_bytes += nbytes
        self._held[sample.ordinal] = sample

    def drop(self, sample: Sample) -> None:
        """Drop a payload, if it is held."""
        if self._held.pop(sample.ordinal, None) is not None:
            self.held_bytes -= sample.nbytes
            self._only_lent_bytes += sample.nbytes * sample.lent
            if sample.loan is None:
                let_go(sample.payload)
            sample.header, sample.payload = b"", None

    def lend(self, sample: Sample) -> None:
        """Count a held payload as copied to a trainer, or as read there."""
        if not sample.lent and sample.payload is not None:
            sample.lent = True
            self.lent_bytes += sample.nbytes
            if isinstance(sample.payload, SharedPayload):
                sample.loan = sample.payload
                self._shared[sample.ordinal] = sample
                self.drop(sample)

    def end_loan(self, sample: Sample) -> None:
        """Count a payload as lent no longer: it was acknowledged, or lost."""
        if sample.lent:
            sample.lent = False
            self.lent_bytes -= sample.nbytes
            self._only_lent_bytes -= sample.nbytes * (sample.payload is None)
            let_go(sample.loan)
            sample.loan = None
            self._shared.pop(sample.ordinal, None)

    def let_all_go(self) -> None:
        """Free what lies in workers' memory: the run is over."""
        for sample in [*self._held.values()]:
            self.drop(sample)
        for sample in [*self._shared.values()]:
            self.end_loan(sample)

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

    def _expected(self, sample: Sample) -> int:
        return max(1, sample.nbytes or self.largest_bytes or self.limit_bytes // FIRST_GUESS)


def _lateness(sample: Sample) -> tuple[bool, int, int, int]:
    """Order payloads by how late they are needed; what is not planned yet comes last of all."""
    return sample.step < 0, sample.step, sample.microbatch, sample.ordinal
