"""torch's iterator with workers, made to end with its process, whatever the workers do."""

import atexit
import errno
import os
import resource
import threading
import time
import weakref
from multiprocessing import process
from pathlib import Path
from typing import Any

from ...workers.processes.ending import Ending, end_processes
from .torch_names import TorchWorkersIterator, child_reports

# Workers may finish what they are at for so long, when an iteration is over.
END_S = 5.0
# The iterators of this process that have workers.
_all: "weakref.WeakSet[OwnWorkers]" = weakref.WeakSet()


class OwnWorkers(TorchWorkersIterator):
    """torch's iterator with workers, which the process that has started them ends, and no other."""

    _shutdown = True  # until torch's iterator has begun: where it is refused before, nothing ends
    _replacer: Any = None

    def __init__(self, arguments: Any) -> None:
        """Start the workers; raises what torch's iterator raises."""
        self._process = os.getpid()
        _check_descriptors(arguments.num_workers)
        super().__init__(arguments)

    def _keep(self) -> None:
        """Keep what has begun until it is over; in a forked child it is over at once."""
        # torch ends its workers through these queues when the iterator is deleted. Where that is
        # the garbage collector's work (a loop left by an exception), the queues' threads would end
        # first, and torch then waits 5 s for each worker. What is held here outlives the iterator.
        queues = (*self._index_queues, self._worker_result_queue)
        weakref.finalize(self, bool, queues).atexit = False  # which only holds them
        _all.add(self)

    def _shutdown_workers(self) -> None:
        if self._shutdown or not self.is_own():
            return
        workers, replacer, self._replacer = [*self._workers], self._replacer, None
        if getattr(self, "_pin_memory_thread", None) is threading.current_thread():
            del self._pin_memory_thread  # a finalizer, in the thread that torch would wait for
            self._pin_memory_thread_done_event.set()
        until = time.monotonic() + END_S
        self._workers = [Ending(worker, until) for worker in workers]  # type: ignore[misc]
        super()._shutdown_workers()
        end_processes(workers)
        if replacer is not None:
            replacer.close()

    def processes(self) -> set[Any]:
        """Return the workers, and what starts others in their place."""
        templates = [] if self._replacer is None else [self._replacer.template.process]
        return {*self._workers, *templates}

    def is_own(self) -> bool:
        """Return whether the workers are this process', which is no forked child of it."""
        return self._process == os.getpid()


def _check_descriptors(workers: int) -> None:
    """Raise OSError where workers need more file descriptors than the process may open."""
    held = len([*Path("/proc/self/fd").iterdir()])
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Measured: 4 for each worker, 2 to 5 for all, and some in a worker, which has these too.
    needed = held + 4 * workers + 8
    if 0 <= limit < needed:  # -1: unlimited
        raise OSError(
            errno.EMFILE,
            f"{workers} worker processes need about {needed} open files, {held} of them open now, "
            f"and {limit} are allowed: raise that (ulimit -n {2 * needed}), or use fewer workers",
        )


def _take_from_torch(iterator: OwnWorkers) -> None:
    """Let torch end nothing of an iterator, nor raise in this process when its workers end."""
    iterator._shutdown = True
    if iterator._worker_pids_set:  # torch's table is by id(), which another iterator may get
        child_reports._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False


def _leave_to_parent() -> None:
    """Make a forked child end nothing: the workers are its parent's, which it may leave by exit."""
    for iterator in list(_all):
        _take_from_torch(iterator)
        # At a process' exit multiprocessing ends those that are here.
        process._children.difference_update(iterator.processes())  # type: ignore[attr-defined]
    _all.clear()


@atexit.register
def _end_all() -> None:
    """End the workers before multiprocessing does, which would wait for ever for one that hangs."""
    for iterator in list(_all):
        if not iterator._shutdown:
            _take_from_torch(iterator)
            end_processes(iterator.processes())


os.register_at_fork(after_in_child=_leave_to_parent)
