"""Measure the main thread's CPU time of a step, and how much of it autograd and c10d take."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time_ns
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

# The outermost of these calls is what counts: a module may call others.
_FOREIGN: tuple[tuple[Any, str], ...] = (
    (dist.ProcessGroup, "send"), (dist.ProcessGroup, "recv"), (dist.Work, "wait"),
    (dist.Work, "is_completed"), (dist, "all_reduce"), (torch.autograd, "backward"),
    (nn.Module, "__call__"),
)  # fmt: skip


class CallClock:
    """Adds up the CPU time of calls into autograd, modules and c10d on this thread."""

    def __init__(self) -> None:
        self.ns = 0
        self._inside = False

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Time the calls that are made inside the block."""
        # What is in the class' dictionary binds to instances; what getattr gives may not.
        originals = [(owner, name, vars(owner)[name]) for owner, name in _FOREIGN]
        for owner, name, _ in originals:
            setattr(owner, name, self._timed(getattr(owner, name)))
        try:
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return call(*arguments, **named)
            self._inside, start = True, thread_time_ns()
            try:
                return call(*arguments, **named)
            finally:
                self.ns += thread_time_ns() - start
                self._inside = False

        return timed


def time_step(step: Callable[[], None]) -> int:
    """Return the main thread's CPU time of a step, in ns."""
    start = thread_time_ns()
    step()
    return thread_time_ns() - start


def time_outside(step: Callable[[], None]) -> int:
    """Return a step's CPU time without the calls that CallClock times, in ns."""
    clock = CallClock()
    with clock.timing():
        whole = time_step(step)
    return whole - clock.ns
