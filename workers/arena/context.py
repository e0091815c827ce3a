"""A multiprocessing context for torch's iterator whose queues carry batches in an arena.

Its event has no lock. multiprocessing's has one, which a worker that is killed while it looks would
keep, and then the trainer would wait for it for ever when it ends the others.
"""

from typing import Any

import torch.multiprocessing

from .queue import ArenaQueue


class LockFreeEvent:
    """An event that one process sets and others look at; it cannot be waited for.

    context: the multiprocessing context of the processes.
    """

    def __init__(self, context: Any) -> None:
        self._times_set = context.Semaphore(0)

    def set(self) -> None:
        """Set it for good."""
        self._times_set.release()

    def is_set(self) -> bool:
        """Return whether it was set."""
        return bool(self._times_set.get_value())


class ArenaContext:
    """Any context of multiprocessing's, None for the interpreter's, but for its queues."""

    def __init__(self, context: Any = None) -> None:
        self._context = torch.multiprocessing if context is None else context

    def Queue(self) -> ArenaQueue:  # noqa: N802
        """Return a queue for tasks or batches; torch asks for none with a largest size."""
        return ArenaQueue()

    def Event(self) -> LockFreeEvent:  # noqa: N802
        """Return what tells the workers that the trainer has done with them."""
        return LockFreeEvent(self._context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
