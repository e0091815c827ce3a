"""torch's iterator over a map-style data set, whose workers are replaced when they die.

torch keeps no task that it has given to a worker: here they are kept until their batch has come,
so that those of a worker that has died can be given to the one in its place. A sample on which
workers die again and again is given up: each worker says in shared memory which one it works on.
torch's own report of a death, which raises in the trainer, is told off.
"""

import logging
import multiprocessing
import queue
import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...workers.batches.envelope import Envelope
from ...workers.batches.map_reader import SEVERAL, NumberedIndex
from ...workers.processes.worker_template import WorkerTemplate
from ...workers.sources.failures import SkippedSample
from ...workers.sources.offered import find_key_function
from ..step.errors import LoaderError
from .iterators import WorkersIterator
from .torch_names import ResumeIteration, child_reports, describe_exit, holds_dataset, worker_loop

logger = logging.getLogger(__name__)

# A sample on which this many workers have died is given up.
MOST_DEATHS = 3
# Where batches are pinned, torch's thread hands them over, and has no descriptor to wait for.
_PINNED_S = 0.02


@dataclass(frozen=True, slots=True)
class Death:
    """A worker that has died and was replaced.

    index: of the sample that is given up, since too many have died of it; None for none.
    """

    worker: int
    index: int | None


class WorkerReplacer:
    """Replaces the workers of one iterator, `restarts` at most."""

    def __init__(self, iterator: Any, context: Any, restarts: int, progress: Any) -> None:
        """Start what replaces workers, which have just been started themselves.

        progress: the number of the sample that each worker works on, plus 1; 0 for none;
        SEVERAL where it loads several at a time.
        """
        self._iterator = iterator
        self._restarts = restarts
        self._progress = progress
        # By the index of a sample: how many workers have died while they worked on it.
        self._deaths: dict[int, int] = {}
        # Those in whose place one sample is loaded at a time.
        self._one_at_a_time: set[int] = set()
        child_reports._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
        maker = multiprocessing.get_context() if context is None else context
        self.template = WorkerTemplate(maker, worker_loop, _arguments(iterator))

    def replace_ended(self) -> list[Death]:
        """Replace the workers that have ended; RuntimeError, as torch's, where they are too many.

        Tasks that were not read are forgotten: all of such a worker are to be given again.
        """
        workers: list[Any] = self._iterator._workers
        ended = [number for number, worker in enumerate(workers) if not worker.is_alive()]
        if len(ended) > self._restarts:
            raise RuntimeError(describe_exit(workers, [workers[number] for number in ended]))
        return [self._replace(number) for number in ended]

    def _replace(self, worker: int) -> Death:
        workers: list[Any] = self._iterator._workers
        mark = self._progress[worker]
        if mark == SEVERAL and worker not in self._one_at_a_time:
            # Not counted: the worker in its place finds out what it has died of.
            self._one_at_a_time.add(worker)
        else:
            self._restarts -= 1
        self._progress[worker] = SEVERAL if worker in self._one_at_a_time else 0
        index = mark - 1
        place = f" while it worked on sample {index}" if index >= 0 else ""
        pid = workers[worker].pid
        logger.warning("worker %d (pid %d) has died%s, and is started again", worker, pid, place)
        self._iterator._index_queues[worker].discard()
        workers[worker] = self.template.start(worker)
        if index < 0:
            return Death(worker, None)
        self._deaths[index] = self._deaths.get(index, 0) + 1
        if self._deaths[index] < MOST_DEATHS:
            return Death(worker, None)
        # What it has cost is no other's.
        self._restarts += MOST_DEATHS
        del self._deaths[index]
        return Death(worker, index)

    def close(self) -> None:
        """End what replaces workers."""
        self.template.close()


def _arguments(iterator: Any) -> list[tuple[Any, ...]]:
    """Return the arguments that torch's iterator has given each of its workers."""
    dataset = [iterator._dataset] if holds_dataset else iterator._dataset
    return [
        (
            iterator._dataset_kind, dataset, iterator._index_queues[number],
            iterator._worker_result_queue, iterator._workers_done_event, iterator._auto_collation,
            iterator._collate_fn, iterator._drop_last, iterator._base_seed,
            iterator._worker_init_fn, number, iterator._num_workers,
            iterator._persistent_workers, iterator._shared_seed,
        )
        for number in range(iterator._num_workers)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Lost:
    """In place of a batch: the error of a sample that workers die of."""

    error: LoaderError


class RestartingIterator(WorkersIterator):
    """One iteration over a loader with worker_restarts."""

    _replacer: WorkerReplacer | None = None

    def _begun(self, loader: Any, arguments: Any) -> None:
        self._name_of = find_key_function(loader.dataset)
        progress = arguments.reader.progress
        context = arguments.multiprocessing_context
        self._replacer = WorkerReplacer(self, context, loader._restarts, progress)
        self._poller = select.poll()
        if not self._pin_memory:
            results: Any = self._worker_result_queue
            self._poller.register(results, select.POLLIN)
        for worker in self._workers:
            self._poller.register(worker.sentinel, select.POLLIN)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        # By its number: a task that is under way; what a batch lacks; what takes a batch's place.
        self._under_way: dict[int, Any] = {}
        self._holes: dict[int, tuple[SkippedSample, ...]] = {}
        self._instead: deque[tuple[Any, Any]] = deque()
        self._resumes = not first_iter
        super()._reset(loader, first_iter)
        self._resumes = False

    def _next_index(self) -> Any:
        self._asked = super()._next_index()
        return self._asked

    def _try_put_index(self) -> None:
        number = self._send_idx
        super()._try_put_index()
        if self._send_idx > number:
            self._under_way[number] = self._asked

    def _try_get_data(self, timeout: float = 5.0) -> tuple[bool, Any]:
        """Return whether something has come within `timeout` seconds, and what."""
        until = time.monotonic() + timeout
        while not self._instead:
            left = max(0.0, until - time.monotonic())
            self._poller.poll(1000 * (min(left, _PINNED_S) if self._pin_memory else left))
            try:
                answer = self._data_queue.get(block=False)
            except queue.Empty:
                self._replace_ended()
                if time.monotonic() >= until:
                    self._tell_wait(timeout)
                    return False, None
                continue
            number, data = answer
            if not isinstance(number, int):
                if self._resumes:
                    return True, answer  # a worker goes on to the next iteration
                continue  # one for which another has answered
            if self._under_way.pop(number, None) is None:
                continue  # made twice
            self._asked_for.pop(number, None)
            self._waited_s = 0.0
            holes = self._holes.pop(number, ())
            return True, (number, data._replace(holes=data.holes + holes) if holes else data)
        return True, self._instead.popleft()

    def _replace_ended(self) -> None:
        replacer = self._replacer
        if replacer is None or all(worker.is_alive() for worker in self._workers):
            return
        for worker in self._workers:
            if not worker.is_alive():
                self._poller.unregister(worker.sentinel)
        for death in replacer.replace_ended():
            self._poller.register(self._workers[death.worker].sentinel, select.POLLIN)
            self._give_again(death)
            if self._resumes:  # one that is new does not have to go on; the dead may have answered
                self._instead.append((ResumeIteration(), None))

    def _give_again(self, death: Death) -> None:
        """Give a worker that was replaced the tasks of the one before, but for a deadly sample."""
        for number, task in list(self._under_way.items()):
            owner = self._task_info.get(number, (None,))[0]
            if owner != death.worker:
                continue
            if death.index is not None and death.index in _indexes(task):
                task = self._leave_out(number, task, death.index)
            if task is not None:
                self._index_queues[death.worker].put((number, task))

    def _leave_out(self, number: int, task: Any, index: int) -> Any:
        """Return a task without a sample that is given up; None if nothing of it is left to do."""
        name = str(self._name_of(index)) if callable(self._name_of) else str(index)
        why = f"{MOST_DEATHS} worker processes died while they worked on it"
        if self._state.left_out is None:
            del self._under_way[number]
            self._instead.append((number, _Lost(LoaderError(f"sample {name!r}: {why}"))))
            return None
        hole = SkippedSample(name, why, "code")
        indexes = [usable for usable in _indexes(task) if usable != index]
        if not indexes:
            del self._under_way[number]
            place = task.number if isinstance(task, NumberedIndex) else -1
            self._instead.append((number, Envelope(None, place, 0, (hole,), empty=True)))
            return None
        self._holes[number] = (*self._holes.get(number, ()), hole)
        self._under_way[number] = (
            NumberedIndex(task.number, indexes) if isinstance(task, NumberedIndex) else indexes
        )
        return self._under_way[number]

    def _process_data(self, data: Any, *worker: int) -> Any:  # torch 2.6 does not say of which
        batch = super()._process_data(data, *worker)  # type: ignore[no-untyped-call]
        if isinstance(batch, _Lost):
            raise batch.error
        return batch


def _indexes(task: Any) -> Sequence[Any]:
    """Return the indexes of a task's samples."""
    index = task.index if isinstance(task, NumberedIndex) else task
    return index if isinstance(index, list) else [index]
