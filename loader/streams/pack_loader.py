"""The plain loop that a rank's packs come by: torch's iterator and workers over a PackedStream.

Workers, errors, pinning, ends, and how states of a stream come back are those of plain loops; see
loader/plain. A place in it is a `StreamPlace`: its ledger can be written later, or never. What each
rank writes of its position in the balanced loop has that ledger in it.
"""

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader, get_worker_info

from ...balancer.protocol.job_spec import JobSpec
from ...balancer.protocol.parts import EpochPosition
from ...workers.batches.envelope import is_stateful, loses_samples
from ...workers.sources.data_identity import KnownData
from ..balanced.settings import LoopSettings
from ..plain.iterators import InlineIterator, WorkersIterator
from ..plain.order import read_states
from ..plain.position import read_position
from ..plain.state import Iteration, PlainState
from ..resume.balanced_position import ResumePosition
from ..resume.ledger import StreamLedger, check_same, check_same_data, read_ledger, write_ledger
from ..step.errors import LoaderError
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

    def __init__(self, stream: PackedStream, like: TorchDataLoader[Any], packs: int) -> None:
        """Take torch's settings of `like`, the user's loader; packs: that a step takes."""
        workers = like.num_workers
        # A step's packs are held in any case before its first one is handed out.
        ahead = max(like.prefetch_factor or 1, -(-packs // max(1, workers)))
        super().__init__(
            stream, batch_size=None, num_workers=workers, collate_fn=_as_it_is,
            pin_memory=like.pin_memory, pin_memory_device=like.pin_memory_device,
            timeout=like.timeout, generator=like.generator,
            worker_init_fn=partial(_begin, stream.dataset, like.worker_init_fn),
            multiprocessing_context=like.multiprocessing_context,
            persistent_workers=like.persistent_workers, prefetch_factor=ahead if workers else None,
        )  # fmt: skip
        self._stats = getattr(like, "_stats", None)
        self._state = PlainState()
        # The iteration that was begun last, also when it is at its end.
        self._iteration = self._state.current
        self._data = stream.dataset

    def _get_iterator(self) -> Any:
        if not self.num_workers:
            return InlineIterator(self, self._state)
        self.check_worker_number_rationality()
        return WorkersIterator(self, self._state)

    def begin(self, at: StreamPlace | None) -> Any:
        """Return an iterator over the packs from a place on; None: of the next epoch."""
        if at is not None:
            self.load(self.ledger(at))
        iterator, self._iteration = iter(self), self._state.current
        if self._iteration.states is None:  # before anything else draws from the generators
            self._iteration.states = read_states(self._iteration.generators)
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Choose the stream's epoch, if it has any."""
        self._state.set_epoch(self._data, epoch)

    def end(self) -> None:
        """End the workers."""
        self._iterator = None

    def leave(self) -> None:
        """Note that the epoch is over, where packs are left that no loop will take."""
        if self._state.current.begun:
            self._state.current = self._state.current.following(finished=False)

    def place(self, left_out: int) -> StreamPlace:
        """Return the place before the pack that comes next."""
        here = copy.copy(self._iteration)
        here.readers, here.waiting, here.generators = {**here.readers}, [], []
        if here.live is not None:
            here.readers[0], here.live = here.live(), None
        return StreamPlace(here, left_out=left_out)

    def ledger(self, at: StreamPlace | None) -> dict[str, Any]:
        """Return the ledger of a place; None: of the next epoch."""
        if at is not None and at.ledger is not None:
            return at.ledger
        state = self._state
        if at is not None and at.iteration is not None:
            state = PlainState()
            state.current = at.iteration
        return state.state_dict(self)

    def write_position(
        self, settings: LoopSettings, epoch: int, position: ResumePosition, data: KnownData
    ) -> dict[str, Any]:
        """Return this rank's ledger of a position."""
        job, at = settings.job, position.stream
        ledger = StreamLedger(
            seed=job.plan.seed, samples=None, data=data.identity, epoch=epoch,
            digest=_digest_job(job), rank=settings.place.played[0], ranks=job.plan.ranks,
            workers=self.num_workers, step=position.place.step,
            microbatch=position.place.microbatch, left_out=0 if at is None else at.left_out,
            stream=self.ledger(at),
        )  # fmt: skip
        return write_ledger(ledger)

    def read_position(
        self, settings: LoopSettings, state: Any, data: KnownData
    ) -> tuple[int, ResumePosition]:
        """Return the epoch and position of this rank's ledger.

        Raises ValueError if it is another rank's, or was of other workers.
        """
        ledger, job = read_ledger(state, StreamLedger), settings.job
        here = {
            "rank": settings.place.played[0],
            "ranks": job.plan.ranks,
            "workers": self.num_workers,
        }
        _check_readers(ledger, here)
        check_same(ledger, {"digest": _digest_job(job)})
        check_same_data(ledger, data)
        read_position(self, ledger.stream)
        self._tell_read_again(ledger.stream)
        at, count = StreamPlace(ledger=ledger.stream, left_out=ledger.left_out), ledger.left_out
        place = EpochPosition(0, ledger.step, ledger.step, ledger.microbatch, "")
        return ledger.epoch, ResumePosition(place, 0, (), count, count, at)

    def load(self, ledger: dict[str, Any]) -> None:
        """Let the next iteration begin at a ledger; ValueError if it cannot."""
        self._state.load_state_dict(self, ledger)
        self._iterator = None  # persistent workers are elsewhere in the data

    def check_way_back(self, at: StreamPlace | None) -> None:
        """Raise LoaderError where the stream cannot be read again from a place on.

        In this process a data set that keeps its place has moved on.
        """
        is_kept = not self.num_workers and is_stateful(self._data) and at is not None
        if is_kept and not any(begin["dataset"] for begin in _find_begins(self.ledger(at))):
            raise LoaderError(
                "an exception has left the first step of this iteration half read, and the stream "
                "keeps its place, which is further: call iter() again"
            )

    def _tell_read_again(self, ledger: dict[str, Any]) -> None:
        """Log that a stream without a state is read again, up to where a ledger is."""
        begins = _find_begins(ledger)
        has_state = all(begin["iterator"] or begin["dataset"] for begin in begins)
        if begins and (loses_samples(self._data) or not has_state):
            logger.warning(
                "%s has no state_dict(), nor has its iterator, or a shuffle buffer is not in it: "
                "what was handed out is read again from the beginning, and is the same only if the "
                "stream gives the same samples in the same order again",
                type(self._data).__name__,
            )


def _digest_job(job: JobSpec) -> str:
    return job.plan.digest() + job.label_source


def _check_readers(ledger: StreamLedger, here: dict[str, int]) -> None:
    """Raise ValueError for a ledger of another rank, or of other numbers of ranks or workers."""
    differing = [name for name, value in here.items() if getattr(ledger, name) != value]
    if differing:
        pairs = "; ".join(f"{n} was {getattr(ledger, n)} and is {here[n]}" for n in differing)
        raise ValueError(
            f"a stream's ledger is of one rank and its workers, each of which was at a place of "
            f"its own ({pairs}): save state_dict() on every rank, and resume each with its own, "
            "the same number of ranks and num_workers; or begin the epoch again"
        )


def _find_begins(ledger: dict[str, Any]) -> list[dict[str, Any]]:
    """Return where the readers that have read something begin, if they go on at a ledger."""
    states = [reader["iterator"] for reader in ledger["readers"] if reader["iterator"]]
    return [state["from"] for state in states if state["read"] or state["from"]["read"]]


def _as_it_is(pack: Any) -> Any:
    """Return a pack, which was collated when it was made: so it can be made again."""
    return pack


def _begin(dataset: Any, init_fn: Callable[[int], None] | None, number: int) -> None:
    """Be a worker_init_fn: show the user's data set in place of ours, and run the user's own."""
    object.__setattr__(get_worker_info(), "dataset", dataset)
    if init_fn is not None:
        init_fn(number)
