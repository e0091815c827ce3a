"""Holds the position of a plain loader: of the iteration that is under way, or of the next one.

An iteration is counted without its iterator and workers, so that the loader can hold it while torch
ends those in its own time. The order is the sampler's business, and a stream's its own: what is
checked of a ledger is what would change the meaning of its position.
"""

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...workers.batches.envelope import Envelope, LoadedState, ReaderPosition, loses_samples
from ...workers.sources.failures import ErrorAction
from ..resume.ledger import PlainLedger, write_ledger
from .order import (
    drawing_sampler,
    find_generators,
    foresee,
    is_stream,
    known_data,
    own_shuffler,
    pack_state,
    read_batch_size,
    take_place,
    unpack_state,
)
from .skipped import LeftOut

_log = logging.getLogger(__name__)


BEGINNING = PlainLedger(
    seed=None, samples=None, data="", worker_seed=None, generators=(), batches=0, waiting=(),
    batch_size=None, left_out=0, order=None, sampler=None, turn=0, readers=(),
)  # fmt: skip


@dataclass(slots=True)
class Iteration:
    """The position in one iteration.

    start: where it begins: a ledger, or the beginning. batches, waiting, turn, seed, worker_seed,
    order: those of its ledger now; None while undecided.
    readers: where the readers are, packed, by number; live: asks the only reader, where it is in
    this process. stays: how many workers go on to the next iteration, 0 if they end.
    generators: what `order.find_generators` returns; states: theirs when the sampler began, None
    until then; was_drawn: whether the data set's state has set torch's generator, as it was when
    the order had been drawn.
    sampler: a stateful one and its iterator, once they have given more than at the start; pending:
    their batches, by number, that were not handed out; is_over: they have no more. drawn: how many
    batches any sampler has given.
    samples: of the data set when it began; loads: how many ledgers had been loaded then.
    """

    start: PlainLedger = BEGINNING
    stream: bool = False
    begun: bool = False
    batches: int = 0
    waiting: list[int] = field(default_factory=list)
    turn: int = 0
    seed: int | None = None
    worker_seed: int | None = None
    order: str | None = None
    readers: dict[int, bytes] = field(default_factory=dict)
    live: Callable[[], bytes] | None = None
    stays: int = 0
    generators: list[torch.Generator] = field(default_factory=list)
    states: tuple[bytes, ...] | None = None
    was_drawn: bool = False
    sampler: tuple[Any, Any] | None = None
    pending: dict[int, Any] = field(default_factory=dict)
    is_over: bool = False
    drawn: int = 0
    samples: int | None = None
    loads: int = 0

    def __post_init__(self) -> None:
        start = self.start
        self.batches, self.waiting, self.turn = start.batches, list(start.waiting), start.turn
        if start is not BEGINNING:
            self.seed, self.worker_seed, self.order = start.seed, start.worker_seed, start.order
        if start.sampler is not None:
            places = itertools.chain(self.waiting, itertools.count(self._top))
            self.pending = dict(zip(places, start.sampler.drawn, strict=False))
        self.readers |= {n: reader.pack() for n, reader in enumerate(start.readers)}

    @property
    def _top(self) -> int:
        """The number from which on no batch has been handed out."""
        return self.batches + len(self.waiting)

    def done(self, count: int) -> None:
        """Note that the first `count` batches are done, in the sampler's order."""
        self.batches = self.start.batches + count
        self.waiting = list(self.start.waiting[count:])
        self._forget()

    def done_number(self, number: int) -> None:
        """Note that the batch of a number is done, whatever came before it."""
        top = self._top
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

    def positions(self, count: int, finished: bool = False) -> tuple[ReaderPosition, ...]:
        """Return the positions of `count` readers; none if no reader has said anything."""
        if self.live is not None:
            at = ReaderPosition.unpack(self.live())
            # Until a stream is read its data set's state is the one from before.
            if finished or not self.stream or at.read or at.iterator is not None:
                return (at,)
        beginning, numbers = ReaderPosition().pack(), range(count if self.readers else 0)
        return tuple(ReaderPosition.unpack(self.readers.get(n, beginning)) for n in numbers)

    def following(self, finished: bool) -> "Iteration":
        """Return the next iteration, not begun; `finished` says that this one is at its end.

        Readers that stay keep their data sets as they are, and workers their generators.
        """
        if self.live is None and not self.stays:
            return Iteration()
        positions = self.positions(max(1, self.stays), finished)
        # Workers state their positions before they find the end; others are not to look for it.
        is_at_end = self.live is not None or not finished
        over = [replace(at, over=True, ended=at.ended or is_at_end) for at in positions]
        workers = self.worker_seed if self.stays else None
        return Iteration(worker_seed=workers, readers={n: at.pack() for n, at in enumerate(over)})

    def _forget(self) -> None:
        for number in [n for n in self.pending if n < self._top and n not in self.waiting]:
            del self.pending[number]


class PlainState:
    """The position of a loader without balance; `left_out` counts what it leaves out, if it may."""

    def __init__(self, left_out: LeftOut | None = None, loaded: PlainLedger | None = None) -> None:
        self.left_out = left_out
        self.current = Iteration()
        self._loaded = loaded
        # Of a ledger's generators, in the iteration that goes on at it.
        self._states: list[torch.Tensor] = []
        # What stands for torch's own generator.
        self.own_generator = torch.default_generator
        # Of a stream that is read in this process.
        self.stream_state = LoadedState()
        # StreamReader.epoch of workers that stay.
        self.epoch: Any = None
        # How many ledgers were loaded: an iterator that was opened before one is stale.
        self.loads = 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave torch's own generator out: each process has its own."""
        return {**self.__dict__, "own_generator": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, own_generator=torch.default_generator)

    @property
    def on_error(self) -> ErrorAction:
        """The policy for samples that cannot be used."""
        return "raise" if self.left_out is None else self.left_out.on_error.action

    def begin(self, loader: Any) -> Iteration:
        """Begin an iteration, from the loaded ledger if there is one; it is then current."""
        loaded, self._loaded, self._states = self._loaded, None, []
        if loaded is not None:
            self.current = Iteration(loaded)
            self._states = [unpack_state(text) for text in loaded.generators]
            loses = loses_samples(loader.dataset)
            if any(r.read and not r.over and (loses or not r.has_state) for r in loaded.readers):
                _log.warning(
                    "%s has no state_dict, nor has its iterator%s: what was handed out is read "
                    "again",
                    type(loader.dataset).__name__,
                    " (its shuffle buffer is not in it)" * loses,
                )
        elif self.current.begun:  # the one before was left early
            self.current = self.current.following(finished=False)
        self.current.begun = True
        self.place_generators(loader)
        self.current.stream = is_stream(loader.dataset)
        self.current.stays = loader.num_workers if loader.persistent_workers else 0
        self.current.samples = known_data(loader.dataset).samples
        self.current.loads = self.loads
        if self.left_out is not None:
            self.left_out.begin(0 if loaded is None else loaded.left_out)
        return self.current

    def place_generators(self, loader: Any) -> None:
        """Set a ledger's generators; once more where a data set's state has set torch's own."""
        if self._states:
            self.own_generator = take_place(self._states, loader)
        self.current.generators = find_generators(loader, self.own_generator)

    def follow_torchs_generator(self, loader: Any) -> None:
        """Note that a data set's state has set torch's own, as it was inside the iteration."""
        self.current.was_drawn = True
        if own_shuffler(drawing_sampler(loader._index_sampler)) is not None:  # its seed is known
            self.own_generator = torch.default_generator
            self.current.generators = find_generators(loader, self.own_generator)

    def set_epoch(self, dataset: Any, epoch: int) -> bool:
        """Choose a data set's epoch, if it has any; return whether workers that stay see it."""
        if not callable(choose := getattr(dataset, "set_epoch", None)):
            return True
        choose(epoch)
        if self.epoch is not None:
            self.epoch[0] = epoch
        return self.epoch is not None

    def finish(self, finished: Iteration) -> None:
        """Note that an iteration has come to its end: a ledger is of the next one from now on."""
        if finished is self.current and finished.begun:
            self.current = finished.following(finished=True)

    def check_current(self, iteration: Iteration) -> None:
        """Raise RuntimeError for an iteration that was begun before a ledger was loaded."""
        if iteration.loads != self.loads:
            raise RuntimeError(
                "this iterator is over: load_state_dict() was called after it was opened, and the "
                "loader goes on elsewhere; call iter() again"
            )

    def state_dict(self, loader: Any) -> dict[str, Any]:
        """Return the ledger.

        What torch would draw for an iteration that has not begun is decided by asking, so that a
        loop which goes on and one that is resumed have the same order.
        """
        if self._loaded is not None:
            return write_ledger(self._loaded)
        current = self.current
        if current.states is None:
            has_seed = current.begun or current.worker_seed is not None
            workers, shuffle, current.states = foresee(loader, self.own_generator, has_seed)
            current.worker_seed = current.worker_seed if has_seed else workers
            if current.seed is None and own_shuffler(drawing_sampler(loader._index_sampler)):
                current.seed = shuffle
        from .position import state_of_sampler  # here: most loops ask for no state

        count = max(1, loader.num_workers)
        in_turns = current.readers and loader.in_order
        data = known_data(loader.dataset)
        ledger = PlainLedger(
            seed=current.seed, samples=current.samples if current.begun else data.samples,
            data=data.identity, worker_seed=current.worker_seed,
            generators=tuple(pack_state(state) for state in current.states),
            batches=current.batches, waiting=tuple(current.waiting),
            batch_size=read_batch_size(loader),
            left_out=self.left_out.count if self.left_out and current.begun else 0,
            order=current.order, sampler=state_of_sampler(current),
            turn=current.turn % count if in_turns else 0,
            readers=tuple(position.check_known() for position in current.positions(count)),
        )  # fmt: skip
        return write_ledger(ledger)

    def load_state_dict(self, loader: Any, state: Any, growing: bool = False) -> None:
        """Make the next iteration go on at a ledger; ValueError if it cannot.

        growing: whether the data may have become more since.
        """
        from .position import read_position

        self._loaded = read_position(loader, state, growing)
        self.current = Iteration()
        self.loads += 1
        if self.left_out is not None:
            self.left_out.begin(self._loaded.left_out)

    def snapshot(self, loader: Any) -> "PlainState":
        """Return a state for a copy of the loader, which begins where this one is."""
        from .position import read_position

        drew = self.own_generator is not torch.default_generator
        moved = drew or self._loaded is not None or self.current.begun or self.current.readers
        ledger = read_position(loader, self.state_dict(loader)) if moved else None
        copied = PlainState(self.left_out, ledger)
        copied.stream_state = LoadedState(self.stream_state.first)
        return copied
