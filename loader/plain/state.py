"""Holds the position of a plain loader: of the iteration that is under way, or of the next one."""

import logging
import pickle
from typing import Any

from ...workers.batches.envelope import StartPosition
from ...workers.sources.failures import OnError
from ..resume.ledger import PlainLedger, write_ledger
from ..step.skipped import LeftOut
from .iteration import Iteration
from .position import is_stream, known_data, read_position, reads_again
from .seeds import drawn_from, next_seeds, next_shuffle_seed, own_shuffler

_log = logging.getLogger(__name__)


class PlainState:
    """The position of a loader without balance; `left_out` counts what it leaves out, if it may."""

    def __init__(self, left_out: LeftOut | None = None, loaded: PlainLedger | None = None) -> None:
        self.left_out = left_out
        self.current = Iteration()
        self._loaded = loaded
        # How many ledgers were loaded: an iterator that was opened before one is stale.
        self.loads = 0

    @property
    def on_error(self) -> OnError:
        """The policy for samples that cannot be used."""
        return "raise" if self.left_out is None else self.left_out.on_error

    def begin(self, loader: Any) -> Iteration:
        """Begin an iteration, from the loaded ledger if there is one; it is then current."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self.current = _resumed(loaded)
            if reads_again(loaded):
                _log.warning(
                    "%s has no state_dict, nor has its iterator: what was handed out is read again",
                    type(loader.dataset).__name__,
                )
        elif self.current.begun:
            self.current = self.current.following(finished=False)
        self.current.begun = True
        self.current.stream = is_stream(loader.dataset)
        self.current.readers_count = max(1, loader.num_workers)
        self.current.inline = not loader.num_workers
        self.current.persistent = loader.persistent_workers
        self.current.samples = known_data(loader.dataset).samples
        self.current.loads = self.loads
        if self.left_out is not None:
            self.left_out.begin(0 if loaded is None else loaded.left_out)
        return self.current

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
        _decide_seeds(loader, current)
        packed = current.sampler_states.get(current.next_number)
        count = max(1, loader.num_workers)
        in_turns = current.readers and getattr(loader, "in_order", True)
        data = known_data(loader.dataset)
        ledger = PlainLedger(
            seed=current.seed,
            samples=current.samples if current.begun else data.samples,
            data=data.identity,
            worker_seed=current.worker_seed,
            batches=current.batches,
            waiting=tuple(current.waiting),
            batch_size=loader.batch_size,
            left_out=self.left_out.count if self.left_out and current.begun else 0,
            order=current.order,
            sampler=pickle.loads(packed) if packed else current.start_sampler,
            turn=current.turn % count if in_turns else 0,
            readers=current.positions(count),
        )
        return write_ledger(ledger)

    def load_state_dict(self, loader: Any, state: Any, growing: bool = False) -> None:
        """Make the next iteration go on at a ledger; ValueError if it cannot.

        growing: whether the data may have become more since.
        """
        self._loaded = read_position(loader, state, growing)
        self.current = Iteration()
        self.loads += 1
        if self.left_out is not None:
            self.left_out.begin(self._loaded.left_out)

    def snapshot(self, loader: Any) -> "PlainState":
        """Return a state for a copy of the loader, which begins where this one is."""
        moved = self._loaded is not None or self.current.begun or self.current.readers
        ledger = read_position(loader, self.state_dict(loader)) if moved else None
        return PlainState(self.left_out, ledger)


def _resumed(ledger: PlainLedger) -> Iteration:
    return Iteration(
        start_batches=ledger.batches,
        start_waiting=ledger.waiting,
        seed=ledger.seed,
        worker_seed=ledger.worker_seed,
        start=StartPosition(ledger.readers, ledger.turn),
        start_sampler=ledger.sampler,
        order=ledger.order,
    )


def _decide_seeds(loader: Any, current: Iteration) -> None:
    shuffles = own_shuffler(drawn_from(loader._index_sampler)) is not None
    if current.begun or current.worker_seed is not None:
        shuffle = next_shuffle_seed()
    else:
        current.worker_seed, shuffle = next_seeds(loader.generator)
    if shuffles and current.seed is None:
        current.seed = shuffle
