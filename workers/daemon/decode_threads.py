"""Loads samples in threads of a worker, ahead of the loop that asks for them one by one.

Pillow, numpy and torch release Python's lock while they decode and resize, so threads of one
process do that side by side. Nothing else moves: the loop takes samples in its own order, packs and
sends them itself, and a sample's error is raised where the loop asks for the sample.

The threads are daemons of the worker's own process: they are started with the first sample, so that
nothing forks while they live, and a process that is killed or exits does not wait for them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any

# A sample's epoch and index: the same sample whatever lease asks for it.
SampleAt = tuple[int, int]
Load = Callable[[int, int], Any]
# Samples that are loaded or wait to be taken, for each thread: one that takes long in front of
# others should not leave threads without work, and each takes memory.
AHEAD = 2


class DecodeThreads:
    """Threads that load the samples which are asked for next.

    >>> threads = DecodeThreads(2)
    >>> threads.begin([(0, 5), (0, 6)], lambda epoch, index: 10 * index)
    >>> [threads.take((0, index))[0] for index in (5, 6)], threads.take((0, 7))
    ([50, 60], None)
    >>> threads.close()
    """

    def __init__(self, count: int) -> None:
        """`count` threads are started when there is something to load."""
        self.count = count
        self._queue: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._begun: dict[SampleAt, Future[tuple[Any, float]]] = {}
        # No longer wanted, and still in work.
        self._dropped: list[Future[tuple[Any, float]]] = []

    @property
    def most_ahead(self) -> int:
        """The most samples to begin with before they are asked for."""
        return AHEAD * self.count

    def begin(self, samples: Sequence[SampleAt], load: Load) -> None:
        """Load these samples, in this order; those that were begun and are not among them go."""
        for sample in self._begun.keys() - set(samples):
            self._drop(self._begun.pop(sample))
        for sample in samples:
            if sample not in self._begun:
                self._begun[sample] = self._load_soon(sample, load)

    def take(self, sample: SampleAt) -> tuple[Any, float] | None:
        """Return a sample and the seconds that it took, once it is there; None if it is not begun.

        Raises what loading it raised.
        """
        begun = self._begun.pop(sample, None)
        return None if begun is None else begun.result()

    def wait_until_idle(self) -> None:
        """Wait until no sample is in work."""
        wait([*self._begun.values(), *self._dropped])
        self._dropped.clear()

    def close(self) -> None:
        """End the threads when they have loaded what they are at."""
        self.begin([], _nothing)
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _load_soon(self, sample: SampleAt, load: Load) -> "Future[tuple[Any, float]]":
        future: Future[tuple[Any, float]] = Future()
        self._queue.put((future, load, sample))
        if len(self._threads) < self.count:
            name = f"cp-decode-{len(self._threads)}"
            thread = threading.Thread(target=_run, args=(self._queue,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def _drop(self, future: "Future[tuple[Any, float]]") -> None:
        self._dropped = [each for each in self._dropped if not each.done()]
        if not future.cancel():
            self._dropped.append(future)


_Task = tuple["Future[tuple[Any, float]]", Load, SampleAt]


def _nothing(_epoch: int, _index: int) -> None:
    return None


def _run(tasks: "SimpleQueue[_Task | None]") -> None:
    """Load samples until there is a None."""
    while (task := tasks.get()) is not None:
        _load(*task)
        del task  # the sample is the loop's, and not to live here until the next one comes


def _load(future: "Future[tuple[Any, float]]", load: Load, sample: SampleAt) -> None:
    if not future.set_running_or_notify_cancel():
        return
    began = time.monotonic()
    try:
        loaded = load(*sample)
    except BaseException as error:  # SystemExit, too, is raised in the loop, where it ends it
        future.set_exception(error)
    else:
        future.set_result((loaded, time.monotonic() - began))
