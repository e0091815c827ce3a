"""torch's iterator over a map-style data set, whose workers are replaced when they die.

torch keeps no task that it has given to a worker: here they are kept until their batch has come,
so that those of a worker that has died can be given to the one in its place.
"""

import queue
import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...workers.batches.envelope import Envelope
from ...workers.batches.map_reader import NumberedIndex
from ...workers.sources.failures import SkippedSample
from ..step.errors import LoaderError
from .iterators import WorkersIterator
from .replacing import MOST_DEATHS, Death, WorkerReplacer

# Where batches are pinned, torch's thread hands them over, and has no descriptor to wait for.
_PINNED_S = 0.02


@dataclass(frozen=True, slots=True)
class _Lost:
    """In place of a batch: the error of a sample that workers die of."""

    error: LoaderError


class RestartingIterator(WorkersIterator):
    """One iteration over a loader with worker_restarts."""

    _replacer: WorkerReplacer | None = None
    _shutdown = True  # until torch's iterator has begun: where it is refused before, nothing ends

    def _begun(self, loader: Any, arguments: Any) -> None:
        self._name_of = getattr(loader.dataset, "key", str)
        progress = arguments.reader.progress
        context = arguments.multiprocessing_context
        self._replacer = WorkerReplacer(self, context, loader._restarts, progress)
        self._poller = select.poll()
        if not self._pin_memory:
            results: Any = self._worker_result_queue
            self._poller.register(results, select.POLLIN)
        for each in self._workers:
            self._poller.register(each.sentinel, select.POLLIN)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        # By its number: a task that is under way; what a batch lacks; what takes a batch's place.
        self._given: dict[int, Any] = {}
        self._holes: dict[int, tuple[SkippedSample, ...]] = {}
        self._instead: deque[tuple[int, Any]] = deque()
        super()._reset(loader, first_iter)

    def _next_index(self) -> Any:
        self._asked = super()._next_index()  # type: ignore[no-untyped-call]
        return self._asked

    def _try_put_index(self) -> None:
        number = self._send_idx
        super()._try_put_index()
        if self._send_idx > number:
            self._given[number] = self._asked

    def _try_get_data(self, timeout: float = 5.0) -> tuple[bool, Any]:
        """Return whether something has come within `timeout` seconds, and what."""
        until = time.monotonic() + timeout
        while not self._instead:
            left = max(0.0, until - time.monotonic())
            self._poller.poll(1000 * (min(left, _PINNED_S) if self._pin_memory else left))
            try:
                found = self._data_queue.get(block=False)
            except queue.Empty:
                self._replace_ended()
                if time.monotonic() >= until:
                    return False, None
                continue
            number, data = found
            if not isinstance(number, int):
                return True, found  # a worker goes on to the next iteration
            if self._given.pop(number, None) is None:
                continue  # made twice
            holes = self._holes.pop(number, ())
            return True, (number, data._replace(holes=data.holes + holes) if holes else data)
        return True, self._instead.popleft()

    def _replace_ended(self) -> None:
        replacer = self._replacer
        if replacer is None or all(each.is_alive() for each in self._workers):
            return
        for each in self._workers:
            if not each.is_alive():
                self._poller.unregister(each.sentinel)
        for death in replacer.replace_ended():
            self._poller.register(self._workers[death.worker].sentinel, select.POLLIN)
            self._give_again(death)

    def _give_again(self, death: Death) -> None:
        """Give a worker that was replaced the tasks of the one before, but for a deadly sample."""
        for number, task in list(self._given.items()):
            owner = self._task_info.get(number, (None,))[0]
            if owner != death.worker:
                continue
            if death.index is not None and death.index in _indexes(task):
                task = self._without(number, task, death.index)
            if task is not None:
                self._index_queues[death.worker].put((number, task))

    def _without(self, number: int, task: Any, index: int) -> Any:
        """Return a task without a sample that is given up; None if nothing of it is left to do."""
        name = str(self._name_of(index)) if callable(self._name_of) else str(index)
        why = f"{MOST_DEATHS} worker processes died while they worked on it"
        if self._state.left_out is None:
            del self._given[number]
            self._instead.append((number, _Lost(LoaderError(f"sample {name!r}: {why}"))))
            return None
        hole = SkippedSample(name, why, "code")
        rest = [each for each in _indexes(task) if each != index]
        if not rest:
            del self._given[number]
            place = task.number if isinstance(task, NumberedIndex) else -1
            self._instead.append((number, Envelope(None, place, 0, (hole,), empty=True)))
            return None
        self._holes[number] = (*self._holes.get(number, ()), hole)
        self._given[number] = NumberedIndex(task.number, rest) if _is_numbered(task) else rest
        return self._given[number]

    def _process_data(self, data: Any, worker_idx: int) -> Any:
        found = super()._process_data(data, worker_idx)  # type: ignore[no-untyped-call]
        if isinstance(found, _Lost):
            raise found.error
        return found

    def _shutdown_workers(self) -> None:
        replacer, self._replacer = self._replacer, None
        super()._shutdown_workers()
        if replacer is not None and self.is_own():
            replacer.close()


def _is_numbered(task: Any) -> bool:
    return isinstance(task, NumberedIndex)


def _indexes(task: Any) -> Sequence[Any]:
    """Return the indexes of a task's samples."""
    index = task.index if isinstance(task, NumberedIndex) else task
    return index if isinstance(index, list) else [index]
