"""torch's iterators, made to count what they hand out and to take batches out of envelopes.

Workers, queues, timeouts, order, pinning, seeds and errors are torch's own. What is ours goes in
through the arguments that the iterator reads from its loader: the loader's own attributes, and ours
in places. A loader whose positions the trainer can count by itself goes in as it is. The data set
and the collate function are wrapped for a stream (each reader has a place of its own in it), for a
data set with a state_dict, for an error policy that leaves samples out, and for batches that may
come out of order.
"""

import functools
import logging
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe

from ...workers.arena import memory
from ...workers.arena.queue import ArenaContext
from ...workers.arena.worker import Beginning
from ...workers.batches.envelope import Envelope, StartPosition, is_stateful, prepare_worker
from ...workers.batches.map_reader import MapReader, NumberedIndex
from ...workers.processes.ending import begin_worker
from ...workers.processes.start_method import quiet_forks, shared_numbers, worker_context
from ...workers.sources.offered import reads_stores
from ..step.errors import OneCaller
from ..step.waiting import WaitLog
from .indices import Indices
from .own_workers import OwnWorkers
from .state import Iteration, PlainState
from .torch_names import TorchExceptionWrapper, TorchInlineIterator, is_profiled, killed_worker

if TYPE_CHECKING:
    from ...workers.batches.stream_reader import StreamReader

    Reader = StreamReader | MapReader
logger = logging.getLogger(__name__)

# While nothing comes torch looks again after this time.
LOOK_S = 5.0
_GONE = "exited unexpectedly"  # torch's text for a worker that has ended, whatever ended it


class Beginnings:
    """Lets the trainer wait until an iterator's workers have begun, and raise what that raised.

    torch hands over what worker_init_fn raises in place of the worker's first batch. Data sets with
    a state are restored at that moment too, and torchdata's loader waits for them in `iter()`.

    context: the multiprocessing context of the workers, None for the interpreter's; wrapper:
    torch's class for an exception that goes to another process.
    """

    def __init__(self, context: Any, wrapper: type) -> None:
        chosen = multiprocessing if context is None else context
        self._reader, self._writer = chosen.Pipe(duplex=False)
        self._lock = chosen.Lock()
        self._wrapper = wrapper

    def worker_part(self) -> "Reporting":
        """Return what the workers need of this, to be sent to them."""
        return Reporting(self._writer, self._lock, self._wrapper)

    def wait(self, workers: list[Any], timeout_s: float) -> None:
        """Wait until all of the started `workers` have begun; raise what one of them raised.

        A worker that dies, and one that says nothing for `timeout_s` (0: forever), end the wait
        without an error: torch's iterator finds them when it is asked for a batch.
        """
        self._writer.close()
        ends = [worker.sentinel for worker in workers]
        with self._reader:
            for _ in workers:
                if self._reader not in wait([self._reader, *ends], timeout_s or None):
                    return
                try:
                    failure = self._reader.recv()
                except EOFError:  # all have died
                    return
                if failure is not None:
                    failure.reraise()


@dataclass(frozen=True, slots=True)
class Reporting:
    """The workers' part of Beginnings."""

    _writer: Connection
    _lock: Any
    _wrapper: type

    def begin(self, init_fn: Callable[[int], None], number: int) -> None:
        """Run worker_init_fn for worker `number` and report how it ended; raises what it raises."""
        try:
            init_fn(number)
        except Exception:
            self._send(self._wrapper(where=f"in DataLoader worker process {number}"))
            raise
        self._send(None)

    def _send(self, failure: Any) -> None:
        with self._lock, self._writer:
            try:
                self._writer.send(failure)
            except Exception:  # it cannot be pickled: the first batch will say it
                self._writer.send(None)


class IteratorArguments:
    """A loader as torch's iterators see it: `ours` in place of its attributes.

    beginnings: of its workers, where the data set has a state; an iterator waits for them.
    """

    def __init__(
        self, loader: Any, reader: "Reader | None", ours: dict[str, Any],
        beginnings: Beginnings | None = None,
    ) -> None:  # fmt: skip
        self.reader = reader
        self.beginnings = beginnings
        self._loader = loader
        self.__dict__.update(ours)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def make_arguments(loader: Any, state: PlainState) -> IteratorArguments:
    """Return the arguments for the iteration that `state` has begun."""
    reader = _reader(loader, state, state.current)
    numbered = isinstance(reader, MapReader) and _out_of_order(loader)
    ours: dict[str, Any] = {"_index_sampler": Indices(loader, state, numbered)}
    if state.current.start.generators:
        ours["generator"] = torch.Generator()  # the seed that torch draws has been drawn before
    elif loader.generator is None and state.own_generator is not torch.default_generator:
        ours["generator"] = state.own_generator
    init_fn = loader.worker_init_fn
    if reader is not None:
        init_fn = functools.partial(prepare_worker, reader, init_fn)
        ours |= {"dataset": reader, "collate_fn": reader.collate}
        if state.current.stream and state.on_error != "raise":
            ours["drop_last"] = False  # the reader drops: torch would count holes as samples
    context: Any = loader.multiprocessing_context
    beginnings = None
    if loader.num_workers:
        context = worker_context(context)
        if reader is not None and is_stateful(loader.dataset):
            beginnings = Beginnings(context, TorchExceptionWrapper)
            init_fn = functools.partial(beginnings.worker_part().begin, init_fn)
        if isinstance(reader, MapReader):
            if loader._restarts:
                refuse_restarts(loader._restarts, memory.find_memory_file_fault())
                reader.progress = shared_numbers(context, loader.num_workers)
        elif reader is not None and loader.persistent_workers:
            state.epoch = reader.epoch = shared_numbers(context, 1)
            state.epoch[0] = -1
        if not memory.find_memory_file_fault():
            stats = getattr(loader, "_stats", None)
            work = None if stats is None else stats.new_workers(context, loader.num_workers)
            init_fn = Beginning(TorchExceptionWrapper, init_fn, work)
            context = ArenaContext(context)
        ours["worker_init_fn"] = functools.partial(begin_worker, init_fn)
        ours["multiprocessing_context"] = context
    return IteratorArguments(loader, reader, ours, beginnings)


def _reader(loader: Any, state: PlainState, current: Iteration) -> "Reader | None":
    dataset, carries = loader.dataset, loader.num_workers > 0
    start = StartPosition(current.start.readers, current.start.turn)
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        return None  # torch looks for the pipes themselves, to share them out and to seed them
    if isinstance(dataset, IterableDataset):
        from ...workers.batches.stream_reader import StreamReader  # here: only streams need it

        batch_size = None if loader.batch_sampler is None else loader.batch_size
        return StreamReader(
            dataset, loader.collate_fn, batch_size, loader.drop_last, state.on_error, start,
            carries, state.stream_state,
        )  # fmt: skip
    watches = (bool(loader._restarts) and carries) or reads_stores(dataset)
    if watches or is_stateful(dataset) or state.on_error != "raise" or _out_of_order(loader):
        return MapReader(dataset, loader.collate_fn, state.on_error, start, carries)
    return None


def _out_of_order(loader: Any) -> bool:
    return loader.num_workers > 1 and not loader.in_order


def refuse_restarts(worker_restarts: int, reason: str) -> None:
    """Raise ValueError where, for a reason, torch's own queues carry the batches."""
    if worker_restarts and reason:
        raise ValueError(
            f"worker_restarts={worker_restarts} needs shared memory, since torch's own queues have "
            f"locks that a killed worker keeps: {reason}; give worker_restarts=0"
        )


class _Counting:
    """Counts for an Iteration, which the loader holds: the count outlives the iterator."""

    samples: int | None = None  # of the batch handed out last, where an envelope has said
    _iteration: Iteration
    _state: PlainState

    def _consumed(self) -> int:
        raise NotImplementedError

    @property
    def _base_seed(self) -> int | None:
        return self._iteration.worker_seed

    @_base_seed.setter
    def _base_seed(self, drawn: int) -> None:
        # Drawn in any case, as torch draws it; an iteration that is resumed has its seed already.
        if self._iteration.worker_seed is None:
            self._iteration.worker_seed = drawn

    def _hand_out(self, data: Any) -> tuple[bool, Any]:
        """Record what torch's iterator returned; return whether there is a batch, and the batch."""
        current = self._iteration
        if type(data) is not Envelope:
            current.done(self._consumed())
            return True, data
        self.samples = data.samples
        if self._state.left_out is not None:
            self._state.left_out.take(tuple(data.holes))
        if current.stream:
            current.batches += not data.empty
        elif data.number >= 0:
            current.done_number(data.number)
        else:
            current.done(self._consumed())
        current.heard(data)
        return not data.empty, data.batch


class InlineIterator(_Counting, TorchInlineIterator):  # type: ignore[misc]
    """One iteration over a loader with num_workers=0."""

    def __init__(self, loader: Any, state: PlainState) -> None:
        """Begin an iteration; raises what the dataset and its iterator raise."""
        self._state, self._iteration = state, state.begin(loader)
        arguments = make_arguments(loader, state)
        reader = arguments.reader
        if reader is not None:
            reader.go_over()
            state.place_generators(loader)
        super().__init__(arguments)  # draws a seed, as it did after the state was taken
        if reader is not None:
            before = torch.get_rng_state()
            reader.restore()
            if not self._iteration.start.batches:
                state.place_generators(loader)
            elif not torch.equal(before, torch.get_rng_state()):
                state.follow_torchs_generator(loader)
            self._iteration.live = reader.position

    def _consumed(self) -> int:
        return self._iteration.drawn

    def __next__(self) -> Any:
        """Return the next batch; at the end the iteration is over."""
        return _next(self, super().__next__)


class WorkersIterator(_Counting, OwnWorkers):  # type: ignore[misc]
    """One iteration over a loader with num_workers > 0 (many, if the workers are persistent)."""

    def __init__(self, loader: Any, state: PlainState) -> None:
        """Start the workers; raises what torch's iterator raises.

        Where the data set has a state, also what it or worker_init_fn raises in a worker.
        """
        self._state, self._iteration = state, state.begin(loader)
        self._caller = OneCaller()
        arguments = make_arguments(loader, state)
        # torch's __next__ warns where a stream has more than the length that it has told.
        self._warns = isinstance(arguments.dataset, IterableDataset)
        with quiet_forks():  # of balanced loaders: no thread of theirs should be forked
            super().__init__(arguments)
            self._begun(loader, arguments)
        self._keep()
        if arguments.beginnings is not None:
            arguments.beginnings.wait(self._workers, loader.timeout)

    def _begun(self, loader: Any, arguments: Any) -> None:
        """Prepare more, once the workers are there and before any thread is in the trainer."""

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._asked_for: dict[int, Any] = {}
        self._log, self._waited_s = WaitLog(is_first=False), 0.0
        if not first_iter:
            self._iteration = self._state.begin(loader)
        super()._reset(loader, first_iter)

    def _next_index(self) -> Any:
        index = self._asked_for[self._send_idx] = super()._next_index()  # type: ignore[no-untyped-call]
        return index

    def _try_get_data(self, timeout: float = LOOK_S) -> tuple[bool, Any]:
        arrival: tuple[bool, Any] = super()._try_get_data(timeout)  # type: ignore[no-untyped-call]
        if arrival[0]:
            self._asked_for.pop(arrival[1][0], None)
            self._log, self._waited_s = WaitLog(is_first=False), 0.0
        else:
            self._tell_wait(timeout)
        return arrival

    def _tell_wait(self, waited_s: float) -> None:
        """Log, now and then, for which worker and samples the next batch waits."""
        self._waited_s += waited_s
        if not self._log.is_due(self._waited_s) and not self._timeout:
            return
        asked = self._asked_for.get(self._rcvd_idx)
        worker = self._task_info.get(self._rcvd_idx, (0,))[0]
        index = asked.index if isinstance(asked, NumberedIndex) else asked
        logger.warning(
            "has waited %.0f s for a batch; still missing: that of worker %d (pid %s), which works "
            "on samples %.200s",
            self._waited_s, worker, self._workers[worker].pid,
            "of a stream" if self._warns else index,
        )  # fmt: skip

    def _consumed(self) -> int:
        # The first tasks were none for workers whose turn had not come.
        return max(0, int(self._rcvd_idx) - self._iteration.start.turn)

    def __next__(self) -> Any:
        """Return the next batch; at the end the iteration is over.

        Raises RuntimeError for two threads at the same time, and in a forked child.
        """
        if not self.is_own():
            raise RuntimeError(
                f"this iterator's workers belong to process {self._process}, and a forked child "
                "cannot use them: call iter(loader) in the child, which starts workers of its own"
            )
        self._caller.enter()
        try:
            return self._next_batch()
        finally:
            self._caller.thread = None

    def _next_batch(self) -> Any:
        try:
            return _next(self, self._torchs_next)
        except RuntimeError as error:
            killed = killed_worker(self._workers) if _GONE in str(error) else None
            if killed is None:
                raise
            raise RuntimeError(killed) from error

    def _torchs_next(self) -> Any:
        """Return what torch's iterator returns next.

        Without its label in a profile while none is taken: that is a tenth of what a batch costs.
        """
        if self._warns or is_profiled():
            return super().__next__()
        data = self._next_data()  # type: ignore[no-untyped-call]
        self._num_yielded += 1
        return data


def _next(iterator: InlineIterator | WorkersIterator, torchs_next: Any) -> Any:
    while True:
        iterator._state.check_current(iterator._iteration)
        try:
            data = torchs_next()
        except StopIteration:
            iterator._state.finish(iterator._iteration)
            raise
        there, batch = iterator._hand_out(data)
        if there:
            return batch
