"""The byte budget: the payloads held, sent and under way, and which of them is needed last.

A payload is *held* until it was sent, here or by its worker, and *sent* until it is acknowledged:
then it is in a trainer's memory, or still to be pulled. Either counts once.
"""

from collections.abc import Iterable, Sequence

from .sample import Payload, Sample, WorkerPayloads

# Before the first payload has arrived its size is guessed as this part of the budget.
FIRST_GUESS = 64


class ByteBudget:
    """Counts the bytes held, sent, and reserved for payloads under way."""

    def __init__(self, limit_bytes: int, kept: WorkerPayloads | None = None) -> None:
        """`limit_bytes` is the budget, `kept` has the payloads that workers keep."""
        self._kept = WorkerPayloads() if kept is None else kept
        self.limit_bytes = limit_bytes
        self.held_bytes = self.sent_bytes = self.reserved_bytes = self.largest_bytes = 0
        self._held: dict[int, Sample] = {}
        self._sent: dict[int, Sample] = {}

    @property
    def is_exceeded(self) -> bool:
        """True if payloads are held, and those held and sent exceed the budget."""
        return bool(self._held) and self.held_bytes + self.sent_bytes > self.limit_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes that are free for more samples to be decoded; below 0 where too much is used."""
        return self.limit_bytes - self.held_bytes - self.sent_bytes - self.reserved_bytes

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
            self._held[sample.ordinal] = sample
            self.held_bytes += payload.nbytes
            self.largest_bytes = max(self.largest_bytes, payload.nbytes)

    def drop(self, samples: Iterable[Sample]) -> None:
        """Drop the payloads that are held of these samples."""
        for sample in samples:
            if self._held.pop(sample.ordinal, None) is not None:
                self.held_bytes -= sample.nbytes
                self._forget_payload(sample)

    def mark_sent(self, samples: Iterable[Sample]) -> None:
        """Count the payloads that are held of samples as sent; a frame is the rank's from now."""
        for sample in samples:
            if self._held.pop(sample.ordinal, None) is None:
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
        self.drop([*self._held.values()])
        self.forget_sent([*self._sent.values()])

    def held_at(self, worker: bytes) -> list[Sample]:
        """Return the held samples whose payloads a worker keeps."""
        return [
            sample
            for sample in self._held.values()
            if sample.payload is not None and sample.payload.worker == worker
        ]

    def latest(self) -> Sample:
        """Return the held sample that is needed last; what is not planned yet comes last of all."""
        return max(self._held.values(), key=lambda s: (s.step < 0, *s.position, s.ordinal))

    def _forget_payload(self, sample: Sample) -> None:
        payload, sample.payload = sample.payload, None
        if payload is not None and payload.serial:
            self._kept.free(payload)

    @property
    def _usual_bytes(self) -> int:
        """The size that a sample is expected to have where nobody has said it."""
        return self.largest_bytes or max(1, self.limit_bytes // FIRST_GUESS)
