"""A multiprocessing context for torch's iterator whose queues carry batches in an arena."""

from typing import Any

import torch.multiprocessing

from .pinned import PinnedSlots
from .queue import ArenaQueue


class ArenaContext:
    """Any context of multiprocessing's, None for the interpreter's, but for its queues.

    pinned: pins the slots of what this process receives by them.
    """

    def __init__(self, context: Any = None, pinned: PinnedSlots | None = None) -> None:
        self._context = torch.multiprocessing if context is None else context
        self._pinned = pinned

    def Queue(self) -> ArenaQueue:  # noqa: N802
        """Return a queue for tasks or batches; torch asks for none with a largest size."""
        return ArenaQueue(self._pinned)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
