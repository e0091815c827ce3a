"""Points inside a pass of the language model at which encoder passes may run.

A stage's module that has started a collective, and would wait for it now, calls `offer()`. What
runs then is what the rank's list has behind the running pass, up to the language model's next one,
as far as its inputs are there: in the list's order, so that gradients are summed as without. Sends
keep their places in the list, and so the order of messages. Nothing waits in a point.
"""

from collections.abc import Callable

from torch.autograd.graph import saved_tensors_hooks

# run_next(ns left, if known) -> ns that a pass took, None if none was run
RunNext = Callable[[int | None], int | None]


class Inside:
    """The encoder passes that may run inside the running one. `run_next`: runs one of them."""

    def __init__(self, run_next: RunNext) -> None:
        self._run_next = run_next

    def offer(self, wait_ns: int | None) -> None:
        """Run passes while they fit into a wait, one where its length is not known."""
        left = wait_ns
        while (took := self._run_next(left)) is not None and left is not None:
            left -= took


# Of the pass that runs in this process. Backward passes may be in another thread, autograd's.
_here: list[Inside] = []


def begin(inside: Inside) -> None:
    """Take the points of a pass that begins."""
    _here.append(inside)


def end() -> None:
    """Take no more points of the pass that has begun last."""
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
    inside = _here.pop()
    try:
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            inside.offer(wait_ns)
    finally:
        _here.append(inside)
