"""The plain loop that a rank's packs come by: torch's iterator and workers over a PackedStream.

Workers, errors, pinning, ends, and how states of a stream come back are those of plain loops; see
loader/plain. A place in it is a `StreamPlace`: its ledger can be written later, or never.
"""

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader

from ...workers.arena.transport import Transport
from ...workers.batches.envelope import loses_samples
from ..plain.iterators import InlineIterator, WorkersIterator
from ..plain.order import states_of
from ..plain.state import Iteration, PlainState
from .reader import PackedStream

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A place in the packs of a rank, before a step; left_out: samples until there, of all ranks.

    iteration: the place, or `ledger` if one was loaded.
    """

    iteration: Iteration | None = None
    ledger: dict[str, Any] | None = None
    left_out: int = 0


class PackLoader(TorchDataLoader[Any]):
    """Yields the packs of this process' workers, one at a time, in torch's order of workers."""

    _restarts = 0

    def __init__(
        self, stream: PackedStream, like: TorchDataLoader[Any], transport: Transport, packs: int
    ) -> None:
        """Take torch's settings of `like`, the user's loader; packs: that a step takes."""
        workers = like.num_workers
        begin = partial(_begin, stream, like.worker_init_fn) if workers else None
        # A step's packs are held in any case before its first one is handed out.
        ahead = max(like.prefetch_factor or 1, -(-packs // max(1, workers)))
        super().__init__(
            stream, batch_size=None, num_workers=workers, collate_fn=stream.collate,
            pin_memory=like.pin_memory, pin_memory_device=like.pin_memory_device,
            timeout=like.timeout, worker_init_fn=begin, generator=like.generator,
            multiprocessing_context=like.multiprocessing_context,
            persistent_workers=like.persistent_workers, prefetch_factor=ahead if workers else None,
        )  # fmt: skip
        self.transport = transport
        self._state = PlainState()

    def _get_iterator(self) -> Any:
        if not self.num_workers:
            return InlineIterator(self, self._state)
        self.check_worker_number_rationality()
        return WorkersIterator(self, self._state)

    def begin(self, at: StreamPlace | None) -> Any:
        """Return an iterator over the packs from a place on; None: of the next epoch."""
        if at is not None:
            self.load(self.ledger(at))
        iterator, current = iter(self), self._state.current
        if current.states is None:  # of the generators, before anything else draws from them
            current.states = states_of(current.generators)
        return iterator

    def end(self) -> None:
        """End the workers."""
        self._iterator = None

    def leave(self) -> None:
        """Note that the epoch is over, where packs are left that nobody will have."""
        if self._state.current.begun:
            self._state.current = self._state.current.following(finished=False)

    def place(self, left_out: int) -> StreamPlace:
        """Return the place before the pack that comes next."""
        here = copy.copy(self._state.current)
        here.readers, here.waiting, here.generators = {**here.readers}, [], []
        if here.live is not None:
            here.readers[0], here.live = here.live().pack(), None
        return StreamPlace(here, left_out=left_out)

    def ledger(self, at: StreamPlace | None) -> dict[str, Any]:
        """Return the ledger of a place; None: of the next epoch, or of a ledger just loaded."""
        if at is None or at.iteration is None:
            return self._state.state_dict(self) if at is None or at.ledger is None else at.ledger
        there = PlainState()
        there.current = at.iteration
        return there.state_dict(self)

    def load(self, ledger: dict[str, Any]) -> None:
        """Let the next iteration begin at a ledger; ValueError if it cannot."""
        self._state.load_state_dict(self, ledger)
        self._iterator = None  # persistent workers are elsewhere in the data

    def tell_read_again(self, ledger: dict[str, Any]) -> None:
        """Log that a stream without a state is read again, up to where a ledger is."""
        stream: Any = self.dataset
        begun = [each["iterator"] for each in ledger["readers"] if each["iterator"]]
        places = [each["from"] for each in begun if each["read"] or each["from"]["read"]]
        has_state = all(at["iterator"] is not None or at["dataset"] is not None for at in places)
        if places and (loses_samples(stream.dataset) or not has_state):
            logger.warning(
                "%s has no state_dict(), nor has its iterator, or a shuffle buffer is not in it: "
                "what was handed out is read again from the beginning, and is the same only if the "
                "stream gives the same samples in the same order again",
                type(stream.dataset).__name__,
            )


def _begin(stream: PackedStream, init_fn: Callable[[int], None] | None, number: int) -> None:
    """Be a worker_init_fn: show the user's data set in place of ours, and run the user's own."""
    stream.show_dataset()
    if init_fn is not None:
        init_fn(number)
