"""Counts one iteration over a plain loader: what was handed out, and from where it would go on.

It knows nothing of iterators and workers, so that it can be held by the loader while torch ends
those in its own time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...workers.batches.envelope import Envelope, ReaderPosition, StartPosition
from ..resume.ledger import SamplerState


@dataclass(slots=True)
class Iteration:
    """The position in one iteration.

    start_batches, start_waiting: where it began: batches handed out before, and the numbers of
    batches before those that had not been (with in_order=False); batches, waiting: the same now.
    seed: of the shuffle; worker_seed: of the workers, as torch draws it; None while undecided.
    start: where the readers begin; readers: where they are, packed, by number; turn: the reader
    whose batch comes next; live: asks the only reader, where it is in this process.
    start_sampler: the state that a stateful sampler begins with; sampler_states: its states,
    packed, by the number of the batch that comes next; drawn: how many batches it has given.
    order: what decides the sampler's order; samples: of the data set when it began; loads: how many
    ledgers had been loaded then.
    readers_count: how many there are; inline: whether the only one is in this process;
    persistent: whether they are workers that go on to the next iteration.
    """

    stream: bool = False
    start_batches: int = 0
    start_waiting: tuple[int, ...] = ()
    seed: int | None = None
    worker_seed: int | None = None
    start: StartPosition = field(default_factory=StartPosition)
    start_sampler: SamplerState | None = None
    begun: bool = False
    batches: int = 0
    waiting: list[int] = field(default_factory=list)
    turn: int = 0
    readers: dict[int, bytes] = field(default_factory=dict)
    live: Callable[[], ReaderPosition] | None = None
    drawn: int = 0
    order: str | None = None
    samples: int | None = None
    loads: int = 0
    sampler_states: dict[int, bytes] = field(default_factory=dict)
    readers_count: int = 1
    inline: bool = False
    persistent: bool = False

    def __post_init__(self) -> None:
        self.batches, self.waiting = self.start_batches, list(self.start_waiting)
        self.turn = self.start.turn
        self.readers |= {n: reader.pack() for n, reader in enumerate(self.start.readers)}

    @property
    def next_number(self) -> int:
        """The lowest number of a batch that has not been handed out."""
        return self.waiting[0] if self.waiting else self.batches

    def done(self, count: int) -> None:
        """Note that the first `count` batches are done, in the sampler's order."""
        self.batches = self.start_batches + count
        self.waiting = list(self.start_waiting[count:])
        self._forget()

    def done_number(self, number: int) -> None:
        """Note that the batch of a number is done, whatever came before it."""
        top = self.batches + len(self.waiting)
        if number < top:
            self.waiting.remove(number)
        else:
            self.waiting += range(top, number)
        self.batches += 1
        self._forget()

    def heard(self, envelope: Envelope) -> None:
        """Note how far a reader is."""
        self.turn = envelope.reader + 1
        if envelope.position is not None:
            self.readers[envelope.reader] = envelope.position

    def positions(self, count: int) -> tuple[ReaderPosition, ...]:
        """Return the positions of `count` readers; none if no reader has said anything."""
        if self.live is not None:
            return (ReaderPosition.unpack(self.live().pack()),)
        if not self.readers:
            return ()
        beginning = ReaderPosition()
        return tuple(
            ReaderPosition.unpack(self.readers[n]) if n in self.readers else beginning
            for n in range(count)
        )

    def following(self, finished: bool) -> "Iteration":
        """Return the next iteration, not begun; `finished` says that this one is at its end.

        Readers that stay keep their data sets as they are, and workers their generators.
        """
        if not self.inline and not self.persistent:
            return Iteration()
        positions = self.positions(self.readers_count)
        # Workers state their positions before they find the end; others are not to look for it.
        found = self.inline or not finished
        over = [replace(each, over=True, ended=each.ended or found) for each in positions]
        workers = self.worker_seed if self.persistent else None
        return Iteration(
            worker_seed=workers, readers={n: each.pack() for n, each in enumerate(over)}
        )

    def _forget(self) -> None:
        for number in [n for n in self.sampler_states if n < self.next_number]:
            del self.sampler_states[number]
