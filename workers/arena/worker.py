"""The slots of a torch worker process, its memory, and a default_collate that stacks into slots.

torch's default_collate stacks tensors in a worker into a shared memory file that it makes for each
batch. Here it stacks into a slot, so that the batch is written once, into pages that exist. Its
table of functions has a private place, but is documented to be changed.
"""

import os
import time
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from .layout import LEAST_IN_SLOT
from .malloc import keep_freed_memory
from .packing import is_ordinary
from .sender import Sender


class Worker:
    """This process as a worker; wrapper: torch's class for an exception that is sent.

    work: where each worker adds up nanoseconds at work, and batches that it has made of this epoch:
    two numbers in memory that the trainer sees, too; None: not counted.
    """

    def __init__(
        self, wrapper: type, number: int, work: MutableSequence[int] | None = None
    ) -> None:
        self.sender = Sender()
        self.tasks: Any = None  # the ArenaQueue that its tasks come by
        self.process = os.getpid()
        self._wrapper = wrapper
        self._number = number
        self.work = work
        self._began = 0

    def begin_task(self) -> None:
        """Note that a task was taken."""
        self._began = time.monotonic_ns()

    def end_task(self, result: Any) -> None:
        """Add a task that is done to what is counted; torch's answer to a new epoch resets them."""
        place = 2 * self._number
        if self.work is not None and type(result) is tuple and type(result[0]) is int:
            self.work[place] += time.monotonic_ns() - self._began
            self.work[place + 1] += getattr(result[1], "empty", False) is not True  # an envelope
        elif self.work is not None:
            self.work[place + 1] = 0

    def failed(self, message: Any) -> Any:
        """Return a message with the exception being handled in place of a batch."""
        index = message[0] if isinstance(message, tuple) and len(message) == 2 else None
        return index, self._wrapper(where=f"in DataLoader worker process {self._number}")


_worker: Worker | None = None


def this_worker() -> Worker | None:
    """Return what this process has as a worker, None in any other process."""
    return _worker if _worker is not None and _worker.process == os.getpid() else None


@dataclass(frozen=True, slots=True)
class Beginning:
    """A worker_init_fn that makes its process an arena's worker, and then calls the loader's."""

    wrapper: type
    then: Callable[[int], None] | None
    work: MutableSequence[int] | None = None

    def __call__(self, number: int) -> None:
        """Begin worker `number`; raises what the loader's own worker_init_fn raises."""
        global _worker
        _worker = Worker(self.wrapper, number, self.work)
        # New pages for each image would take a sixth of the time of decoding it.
        keep_freed_memory()
        replace_stacking()
        if self.then is not None:
            self.then(number)


def replace_stacking() -> None:
    """Have default_collate stack by stack_into_slot, unless it was changed already."""
    if default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn:
        default_collate_fn_map[torch.Tensor] = stack_into_slot


def stack_into_slot(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
    """Stack tensors as default_collate does, large ones into a slot; raises what it raises."""
    first, worker = batch[0], this_worker()
    if type(first) is not torch.Tensor or not is_ordinary(first):
        stacked: torch.Tensor = collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
        return stacked
    nbytes = first.numel() * first.element_size() * len(batch)
    # Without slots too: torch's own stacking takes shared memory in any worker.
    if worker is None or nbytes < LEAST_IN_SLOT:
        return torch.stack(batch, 0)
    out = worker.sender.tensor(nbytes).view(first.dtype).view(len(batch), *first.shape)
    return torch.stack(batch, 0, out=out)
