"""Where a planned loop's tasks are done: torch's own worker processes.

Processes, queues, start methods and ends are torch's. What is ours is who gets which task: the plan
says so, and the samples to measure come in between.
"""

import logging
import queue
import select
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from ...balancer.run.tasks import TASK_HEAD, Failed, Killed, OwnTasks
from ...workers.arena import memory
from ...workers.arena.queue import ArenaContext
from ...workers.arena.worker import Beginning
from ...workers.batches.envelope import prepare_worker
from ...workers.planned.reader import PlannedReader
from ...workers.processes.ending import begin_worker
from ...workers.processes.start_method import quiet_forks, shared_numbers, worker_context
from ...workers.sources.randomness import own_generators
from ..balanced.settings import WorkerStart
from ..plain.iterators import refuse_restarts
from ..plain.own_workers import OwnWorkers
from ..plain.torch_names import TorchExceptionWrapper, describe_exit

if TYPE_CHECKING:
    from ..plain.restarting import Death

logger = logging.getLogger(__name__)

# A worker that has ended is looked for this often while nothing arrives.
_LOOK_S = 1.0
# Samples of a task that a text names, where it is not known which one is in work.
_NAMED = 8
# torch's thread that pins batches hands them over by a queue without a descriptor: what comes of
# planning meanwhile is seen this much later.
_PINNED_S = 0.02


class WorkerTasks(OwnWorkers, OwnTasks):
    """Does tasks in worker processes, which start here; results come in the order they are made."""

    def __init__(
        self, reader: PlannedReader, start: WorkerStart, prefetch: int, seed: int = 0
    ) -> None:
        """Start the workers; raises what torch's iterator raises.

        prefetch: tasks for each. seed: what their get_worker_info().seed follows from:
        as torch's, another in each epoch, and on each rank.
        """
        context: Any = worker_context(start.context)
        init_fn: Any = partial(_begin, reader, start.begin)
        why_not = memory.find_memory_file_fault()
        refuse_restarts(start.restarts, why_not)
        if not why_not:
            stats = start.stats
            work = None if stats is None else stats.new_workers(context, start.workers)
            init_fn = Beginning(TorchExceptionWrapper, init_fn, work)
            context = ArenaContext(context)
        self._progress = reader.progress = shared_numbers(context, start.workers)
        self._killed: deque[tuple[int, Killed]] = deque()
        self.most = self.most_held = prefetch * start.workers
        self._loads = [0] * start.workers
        # By its number: a task that is under way, and who has it.
        self._under_way: dict[int, tuple[int, list[int]]] = {}
        with quiet_forks():  # no thread of ours is in the trainer then
            super().__init__(_arguments(reader, start, prefetch, context, init_fn, seed))
            if start.restarts:
                from ..plain.restarting import WorkerReplacer  # here: few loops replace any

                self._replacer = WorkerReplacer(self, context, start.restarts, self._progress)
        self._keep()
        self._poller = select.poll()
        self._also: int | None = None
        if not self._pin_memory:
            results: Any = self._worker_result_queue  # multiprocessing's own has a connection
            self._poller.register(getattr(results, "_reader", results), select.POLLIN)
        for worker in self._workers:
            self._poller.register(worker.sentinel, select.POLLIN)

    def _try_put_index(self) -> None:
        """Do nothing: tasks are given by `submit`."""

    def submit(self, number: int, task: list[int]) -> None:
        """Give a task to the worker that has the fewest."""
        worker = self._loads.index(min(self._loads))
        self._loads[worker] += 1
        self._under_way[number] = worker, task
        self._index_queues[worker].put((number, task))

    def receive(self, seconds: float = 0.0, also: int | None = None) -> tuple[int, Any] | None:
        """Return the number of a task and its result; None if none comes within `seconds`.

        also: a descriptor that ends the wait when it is readable. Raises RuntimeError where a
        worker has ended.
        """
        answer = self._get()
        if answer is None and seconds:
            if self._pin_memory:
                answer = self._get(min(seconds, _PINNED_S))
            else:
                self._wait(min(seconds, _LOOK_S), also)
                answer = self._get()
            if answer is None:
                self._check_workers()
        if answer is None:
            return self._killed.popleft() if self._killed else None
        number, result = answer
        if number in self._under_way:
            worker, _ = self._under_way.pop(number)
            self._loads[worker] -= 1
        if isinstance(result, TorchExceptionWrapper):
            result = Failed(None, result)
        return number, result

    def describe_worker(self, number: int) -> str:
        """Return who works on a task, and on which sample, as text."""
        if number not in self._under_way:
            return "a worker"
        worker, task = self._under_way[number]
        at = self._progress[worker] - 1
        samples = [at] if at >= 0 else task[TASK_HEAD:][:_NAMED]
        named = ", ".join(map(str, samples))
        return f"worker {worker} (pid {self._workers[worker].pid}), which works on sample {named}"

    def _get(self, seconds: float = 0.0) -> tuple[int, Any] | None:
        try:
            answer: tuple[int, Any] = self._data_queue.get(bool(seconds), seconds or None)
        except queue.Empty:
            return None
        return answer

    def _wait(self, seconds: float, also: int | None) -> None:
        if also is not None and self._also != also:
            if self._also is not None:
                self._poller.unregister(self._also)
            self._poller.register(also, select.POLLIN)
            self._also = also
        self._poller.poll(seconds * 1000)

    def _check_workers(self) -> None:
        """Replace workers that have ended; RuntimeError, as torch's, where they cannot be."""
        ended = [worker for worker in self._workers if not worker.is_alive()]
        if not ended:
            return
        if self._replacer is None:
            raise RuntimeError(describe_exit(self._workers, ended))
        for worker in ended:
            self._poller.unregister(worker.sentinel)
        for death in self._replacer.replace_ended():
            self._poller.register(self._workers[death.worker].sentinel, select.POLLIN)
            self._give_again(death)

    def _give_again(self, death: "Death") -> None:
        """Give a worker that was replaced the tasks of the one before, but for a deadly sample."""
        from ..plain.restarting import MOST_DEATHS

        tasks = {n: task for n, (owner, task) in self._under_way.items() if owner == death.worker}
        for number, task in tasks.items():
            if death.index is not None and death.index in task[TASK_HEAD:]:
                del self._under_way[number]
                self._loads[death.worker] -= 1
                self._killed.append((number, Killed(death.index, MOST_DEATHS)))
            else:
                self._index_queues[death.worker].put((number, task))

    def close(self) -> None:
        """End the workers, and wait until they have ended."""
        if self.is_own():
            self._shutdown_workers()


def _arguments(
    reader: PlannedReader, start: WorkerStart, prefetch: int, context: Any, init_fn: Any, seed: int
) -> SimpleNamespace:
    """Return what torch's iterator reads of its loader."""
    return SimpleNamespace(
        dataset=reader,
        collate_fn=reader.collate,
        worker_init_fn=partial(begin_worker, init_fn),
        num_workers=start.workers,
        multiprocessing_context=context,
        prefetch_factor=prefetch,
        persistent_workers=start.persistent,
        pin_memory=start.pins,
        pin_memory_device="",
        timeout=0,
        in_order=True,
        drop_last=False,
        # Samples are seeded one by one: the workers' own seeds are for worker_init_fn.
        generator=torch.Generator().manual_seed(seed & (1 << 63) - 1),
        _dataset_kind=0,
        _IterableDataset_len_called=None,
        _auto_collation=True,
        _index_sampler=(),
    )


# What this worker process has entered for good: it ends when no reference is left.
_entered: list[AbstractContextManager[None]] = []


def _begin(reader: PlannedReader, init_fn: Callable[[int], None] | None, number: int) -> None:
    """Be a worker_init_fn: the generators are the samples' own; the user's runs as in torch's."""
    reader.begin(number)
    _entered.append(own_generators())
    _entered[-1].__enter__()
    prepare_worker(reader, init_fn, number)
