"""Starts workers in the place of those that have died, for iterators of torch's.

A sample on which workers die again and again is given up: each worker says in shared memory which
one it works on. torch's own report of a death, which raises in the trainer, is told off.
"""

import logging
import mmap
import multiprocessing
from dataclasses import dataclass
from typing import Any

from ...workers.batches.map_reader import SEVERAL
from ...workers.processes.start_method import start_method
from ...workers.processes.worker_template import WorkerTemplate
from .deaths import killed_worker
from .torch_names import child_reports, worker_loop

logger = logging.getLogger(__name__)

# A sample on which this many workers have died is given up.
MOST_DEATHS = 3


@dataclass(frozen=True, slots=True)
class Death:
    """A worker that has died and was replaced.

    index: of the sample that is given up, since too many have died of it; None for none.
    """

    worker: int
    index: int | None


def shared_numbers(context: Any, count: int) -> Any:
    """Return numbers that workers of a context and the trainer see."""
    if start_method(context) == "fork":  # nothing is left of it when nobody refers to it
        return memoryview(mmap.mmap(-1, 8 * count)).cast("q")
    return context.RawArray("q", count)


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

        Tasks that nobody has read are forgotten: all of such a worker are to be given again.
        """
        workers: list[Any] = self._iterator._workers
        ended = [number for number, each in enumerate(workers) if not each.is_alive()]
        if len(ended) > self._restarts:
            killed = killed_worker(workers)
            pids = ", ".join(str(workers[number].pid) for number in ended)
            raise RuntimeError(killed or f"DataLoader worker (pid(s) {pids}) exited unexpectedly")
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
        what = f" while it worked on sample {index}" if index >= 0 else ""
        pid = workers[worker].pid
        logger.warning("worker %d (pid %d) has died%s, and is started again", worker, pid, what)
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
    """Return what torch's iterator has given each of its workers."""
    return [
        (
            iterator._dataset_kind, iterator._dataset, iterator._index_queues[number],
            iterator._worker_result_queue, iterator._workers_done_event, iterator._auto_collation,
            iterator._collate_fn, iterator._drop_last, iterator._base_seed,
            iterator._worker_init_fn, number, iterator._num_workers,
            iterator._persistent_workers, iterator._shared_seed,
        )
        for number in range(iterator._num_workers)
    ]  # fmt: skip


def refuse_restarts(worker_restarts: int, why_inline: str) -> None:
    """Raise ValueError where workers cannot be replaced: torch's own queues carry the batches."""
    if worker_restarts and why_inline:
        raise ValueError(
            f"worker_restarts={worker_restarts} needs shared memory, since torch's own queues have "
            f"locks that a killed worker keeps: {why_inline}; give worker_restarts=0"
        )
