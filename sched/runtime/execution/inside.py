"""Points inside a pass of the language model at which encoder passes may run.

A stage's module that has started a collective, and would wait for it now, calls `offer()`. What
runs then is what the rank's list has behind the running pass, up to the language model's next one,
as far as its inputs are there: in the list's order, so that gradients are summed as without. Sends
keep their places in the list, and so the order of messages. Nothing waits in a point.
"""

from collections.abc import Callable

from torch.autograd.graph import saved_tensors_hooks


class Inside:
    """The encoder passes that may run inside the running one.

    `run_next`: runs one of them, and returns whether there was one that can. `count`: of them.
    `points`: that are offered while the pass runs, 0 if that is not known; they share the passes.
    """

    def __init__(self, run_next: Callable[[], bool], count: int, points: int) -> None:
        self.seen = 0
        self._run_next, self._count, self._points, self._ran = run_next, count, points, 0

    def offer(self) -> None:
        """Run this point's share of the passes: rounded up, and one where points are not known."""
        self.seen += 1
        due = -(-self._count * self.seen // self._points) if self._points else self.seen
        while self._ran < min(due, self._count) and self._run_next():
            self._ran += 1


# Of the pass that runs in this process. Backward passes may be in another thread, autograd's.
_here: list[Inside] = []


def begin(inside: Inside) -> None:
    """Take the points of a pass that begins."""
    _here.append(inside)


def end() -> None:
    """Take no more points of the pass that has begun last."""
    _here.pop()


def offer() -> None:
    """Let encoder passes run inside the running pass of the language model.

    Called in the forward or the backward of a stage's module, after a collective or a copy has been
    started and before it is waited for. Outside of passes, and where the plan has no encoder passes
    there, it does nothing. On CUDA these passes are launched on the current stream.
    """
    if not _here:
        return
    # What a checkpoint of the stage keeps, or computes again, is its own tensors alone.
    inside = _here.pop()
    try:
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            inside.offer()
    finally:
        _here.append(inside)
