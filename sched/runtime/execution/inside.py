"""Points inside a pass of the language model at which encoder passes may run.

A stage's module that has started a collective, and would wait for it now, calls `offer()`. What
runs then is what the rank's list has behind the running pass, up to the language model's next one,
as far as its inputs are there: in the list's order, so that gradients are summed as without. Sends
keep their places in the list, and so the order of messages. Nothing waits in a point.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.autograd.graph import saved_tensors_hooks

# run_next(ns left, if known) -> ns that a pass took, None if none was run
RunNext = Callable[[int | None], int | None]


# Of the pass that runs in this process. Backward passes may be in another thread, autograd's.
_here: list[RunNext] = []


@contextmanager
def points(run_next: RunNext) -> Iterator[None]:
    """Let the points of the pass that runs in the block run others by `run_next`."""
    _here.append(run_next)
    try:
        yield
    finally:
        _here.pop()


def offer(wait_ns: int | None = None) -> None:
    """Let encoder passes run inside the running pass of the language model.

    Called in the forward or the backward of a stage's module, after a collective or a copy has been
    started and before it is waited for. `wait_ns`: how long the wait takes, if that is known:
    passes run as long as most of what the next one took the last time fits; else one is run.
    Outside of passes, and where the plan has no encoder passes there, it does nothing. On CUDA
    these passes are launched on the current stream.
    """
    if not _here:
        return
    # What a checkpoint of the stage keeps, or computes again, is its own tensors alone.
    run_next, left = _here.pop(), wait_ns
    try:
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            while (took := run_next(left)) is not None and left is not None:
                left -= took
    finally:
        _here.append(run_next)
