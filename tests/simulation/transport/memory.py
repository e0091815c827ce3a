"""The memory that simulated workers lend to simulated ranks: stands for workers/lending/.

The books are the real ones. What the two sides tell each other takes time, comes in order, and ends
with either of them; now and then a handle is spoiled on its way.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from counterpoise.balancer.protocol.messages import Batch, FreeSlots, Message, PayloadHandle
from counterpoise.balancer.protocol.rank_session import RankSession
from counterpoise.workers.lending.borrower_book import BorrowerBook
from counterpoise.workers.lending.lender_book import Ask, LenderBook
from counterpoise.workers.lending.segments import Segments
from tests.simulation.transport.network import Action, SimulatedNetwork

# Of a worker's memory: room for some payloads, in segments of a few, which may be one run.
MOST_BYTES, SEGMENT_BYTES = 4096, 512
# One microbatch in this many comes with a handle that is of no use.
SPOILED_EVERY = 9


class SimulatedLender:
    """One worker process' memory."""

    def __init__(self, token: int, network: SimulatedNetwork, delay_s: float) -> None:
        segments = Segments(MOST_BYTES, SEGMENT_BYTES, SEGMENT_BYTES)
        self.book = LenderBook(token, segments, SEGMENT_BYTES)
        self.segments: dict[int, bytearray] = {}
        self.is_there = True
        self._network = network
        self._delay_s = delay_s
        self._readers: dict[bytes, SimulatedBorrower] = {}
        self._arrival = 0.0

    def lend(self, payload: bytes, joins: bool) -> PayloadHandle | bytes:
        """Write a payload; return its handle, or the payload where there is no room.

        joins: it may lie in one run with the one before.
        """
        handle = self.book.join(len(payload)) if joins else None
        handle = handle or self.book.add(len(payload))
        if handle is None:
            return payload
        size = self.book.segments.size(handle.segment)
        memory = self.segments.setdefault(handle.segment, bytearray(size))
        memory[handle.offset : handle.offset + handle.nbytes] = payload
        return handle

    def free(self, message: FreeSlots) -> None:
        """Free payloads that the balancer does not need any more."""
        self._ask(self.book.free(message.serials, message.readers or None))

    def free_all(self) -> None:
        """Free all payloads."""
        self._ask(self.book.free_all())

    def connect(self, reader: "SimulatedBorrower") -> BorrowerBook:
        """Accept a rank's connection."""
        self._readers[reader.name] = reader
        return BorrowerBook(*self.book.connect(reader.name))

    def answer(self, name: bytes, serials: Sequence[int]) -> None:
        """Send what a rank does not read any more."""
        self._later(lambda: self.book.answer(name, serials))

    def leave(self, name: bytes) -> None:
        """Send that a rank has ended."""
        self._readers.pop(name, None)
        self._later(lambda: self.book.disconnect(name))

    def _ask(self, ask: Ask) -> None:
        oldest = self.book.oldest
        # In one order, whatever that of a set is: a seed decides everything.
        for name, serials in sorted(ask.items()):
            if name in self._readers:
                self._later(lambda n=name, s=serials: self._put_question(n, oldest, s))  # type: ignore[misc]

    def _put_question(self, name: bytes, oldest: int, serials: Sequence[int]) -> None:
        if name in self._readers:
            self._readers[name].books[self.book.token].ask(oldest, serials)

    def _later(self, action: Action) -> None:
        """Do something when a message arrives, after those before it."""
        delay_s = self._network.random.random() * self._delay_s
        self._arrival = max(self._arrival + 1e-9, self._network.now + delay_s)
        self._network.at(self._arrival - self._network.now, lambda: self._do(action))

    def _do(self, action: Action) -> None:
        if self.is_there:
            action()


@dataclass(slots=True)
class SimulatedBorrower:
    """One rank process' access to all workers' memory; `lenders` are all that ever were."""

    name: bytes
    lenders: dict[int, SimulatedLender]
    books: dict[int, BorrowerBook] = field(default_factory=dict)
    in_use: tuple[PayloadHandle, ...] = ()
    _batches: int = 0

    def read(self, batch: Batch, frames: Collection[object]) -> tuple[object, ...] | None:
        """Return a microbatch's payloads and use them; None if some cannot be had."""
        runs = [self._spoiled(h) if n == 0 else h for n, h in enumerate(batch.handles.runs)]
        if not runs:
            return tuple(frames)
        if not all(map(self._has, runs)):
            return None
        self.in_use = tuple(
            structs.replace(runs[number], offset=runs[number].offset + offset, nbytes=nbytes)
            for number, offset, nbytes in batch.handles.places()
            if number >= 0
        )
        # Payloads in no run came with the message.
        rest, used = iter(frames), iter(self.in_use)
        return tuple(next(rest) if n < 0 else self._bytes(next(used)) for n in batch.handles.run_of)

    def used(self) -> tuple[bytes, ...]:
        """Return what is in use, as it is now."""
        return tuple(map(self._bytes, self.in_use))

    def is_settled(self, _: Batch) -> bool:
        """Return that nothing of a microbatch is on its way: it lies where its worker lent it."""
        return True

    def turn(self, session: RankSession) -> list[Message]:
        """Answer workers, as far as nothing that they ask about is in use; nothing to report."""
        handles = [*session.handles(), *self.in_use]
        for token, book in self.books.items():
            used = {handle.serial for handle in handles if handle.token == token}
            if book.owes and (done := book.answers(used)):
                self.lenders[token].answer(self.name, done)
        return []

    def trained(self) -> None:
        """Use nothing any more."""
        self.in_use = ()

    def leave(self) -> None:
        """End: nothing is read any more."""
        for token in self.books:
            self.lenders[token].leave(self.name)
        self.books.clear()

    def _has(self, handle: PayloadHandle) -> bool:
        lender = self.lenders.get(handle.token)
        if lender is None:
            return False
        if handle.token not in self.books:
            if not lender.is_there:
                return False
            self.books[handle.token] = lender.connect(self)
        size = len(lender.segments.get(handle.segment, b""))
        fits = handle.offset + handle.nbytes <= size
        return fits and self.books[handle.token].may_read(handle)

    def _bytes(self, handle: PayloadHandle) -> bytes:
        memory = self.lenders[handle.token].segments[handle.segment]
        return bytes(memory[handle.offset : handle.offset + handle.nbytes])

    def _spoiled(self, handle: PayloadHandle) -> PayloadHandle:
        """Return a handle, now and then one of a dead memory, of no payload, or out of range."""
        self._batches += 1
        if self._batches % SPOILED_EVERY:
            return handle
        wrong = self._batches // SPOILED_EVERY % 4
        return [
            structs.replace(handle, token=handle.token + 1),
            structs.replace(handle, serial=0),
            structs.replace(handle, offset=handle.offset + MOST_BYTES),
            structs.replace(handle, segment=handle.segment + (1 << 40)),
        ][wrong]
