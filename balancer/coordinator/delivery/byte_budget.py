"""The byte budget: what is held, what is lent, what is under way, which payload is needed last.

A payload that was sent and is not acknowledged is *lent*: a copy is in a trainer's memory, and the
one that is held here is of use only if the other is lost. So each payload counts once where there
is need, and twice only while there is room.
"""

from .sample import Sample

# Before the first payload has arrived its size is guessed as this part of the budget.
FIRST_GUESS = 64


class ByteBudget:
    """Payloads held or lent, bytes reserved for those under way; whoever asks decides what goes."""

    def __init__(self, most: int) -> None:
        """`most` is the budget in bytes."""
        self.most = most
        self.held_bytes = 0
        self.reserved_bytes = 0
        self.lent_bytes = 0
        self.largest = 0
        self._elsewhere_bytes = 0  # lent, and not held any more
        self._holding: dict[int, Sample] = {}

    @property
    def is_exceeded(self) -> bool:
        """Whether something is held, and with what is lent more than the budget allows."""
        return bool(self._holding) and self.held_bytes + self.lent_bytes > self.most

    def has_room(self, sample: Sample) -> bool:
        """Whether a sample can be decoded within the budget."""
        there = self.held_bytes + self._elsewhere_bytes + self.reserved_bytes
        return there + self._expected(sample) <= self.most

    def reserve(self, sample: Sample) -> None:
        """Count a sample as under way."""
        sample.reserved = self._expected(sample)
        self.reserved_bytes += sample.reserved

    def release(self, sample: Sample) -> None:
        """Count a sample as under way no longer."""
        self.reserved_bytes -= sample.reserved
        sample.reserved = 0

    def keep(self, sample: Sample, header: bytes, payload: object, nbytes: int) -> None:
        """Hold a sample's payload."""
        sample.header, sample.payload, sample.nbytes = header, payload, nbytes
        self.largest = max(self.largest, nbytes)
        self.held_bytes += nbytes
        self._holding[sample.ordinal] = sample

    def drop(self, sample: Sample) -> None:
        """Let a payload go, if it is held."""
        if self._holding.pop(sample.ordinal, None) is not None:
            self.held_bytes -= sample.nbytes
            self._elsewhere_bytes += sample.nbytes * sample.lent
            sample.header, sample.payload = b"", None

    def lend(self, sample: Sample) -> None:
        """Count a held payload as copied to a trainer."""
        if not sample.lent and sample.payload is not None:
            sample.lent = True
            self.lent_bytes += sample.nbytes

    def take_back(self, sample: Sample) -> None:
        """Count a payload as lent no longer: it was acknowledged, or lost."""
        if sample.lent:
            sample.lent = False
            self.lent_bytes -= sample.nbytes
            self._elsewhere_bytes -= sample.nbytes * (sample.payload is None)

    def latest_copy(self) -> Sample | None:
        """Return the held sample that is lent and needed last, None if none is lent and held."""
        return max((s for s in self._holding.values() if s.lent), key=_lateness, default=None)

    def latest(self) -> Sample:
        """Return the held sample that is needed last."""
        return max(self._holding.values(), key=_lateness)

    def _expected(self, sample: Sample) -> int:
        return max(1, sample.nbytes or self.largest or self.most // FIRST_GUESS)


def _lateness(sample: Sample) -> tuple[bool, int, int, int]:
    """Order payloads by how late they are needed; what is not planned yet comes last of all."""
    return sample.step < 0, sample.step, sample.microbatch, sample.ordinal
