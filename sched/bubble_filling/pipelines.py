"""Placement of one direction's work at a given extension, and the least extension that suffices.

`match` joins encoder results and the language model's microbatches. A result must be there before
the language model needs it (EF_i <= F_i) and its gradient be there before the encoder goes back
(EB_i >= B_i). So each can take the places of an interval, and both directions must agree on one
place. Optimus sorts the two directions independently; a data sample could then go forward on one
pipeline and backward on another. Here it is a matching of intervals, which the earliest deadline
first solves exactly.

Forward passes go as early as they can, and backward passes as late as they can: the same code on a
mirrored clock, with what the forwards left. For given microbatches in a given order on a pipeline
as early as possible is best possible: a kernel that is ready earlier never ends later, so each
microbatch ends as early as in any schedule with that order, and a longer extension never hurts
(so the least one is found by bisection). The microbatches behind do not move those before them, so
what holds for the first n is a prefix of what holds for more: a partition of the microbatches is
a choice of prefixes, and none has to be enumerated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from .gaps import FREE, Ints, Stretches
from .instance import FillProblem, StageKernels
from .kernels import place


def match(
    done: Sequence[int], last: Sequence[int], need: Ints, gradient: Ints
) -> tuple[int, ...] | None:
    """Return a place for each result, or None if not all have one.

    `done`: the time at which each result is ready. `last`: the latest time for its gradient.
    `need`, `gradient`: F_i and B_i, ascending.

    >>> import numpy as np
    >>> match([5, 1], [90, 90], np.array([2, 6]), np.array([50, 80]))
    (1, 0)
    >>> match([5, 3], [90, 90], np.array([2, 6]), np.array([50, 80])) is None
    True
    """
    waiting = sorted(range(len(done)), key=done.__getitem__, reverse=True)
    limit = (gradient.searchsorted(last, side="right") - 1).tolist()
    ready: list[tuple[int, int]] = []
    place = [0] * len(done)
    for at, by in enumerate(need.tolist()):
        while waiting and done[waiting[-1]] <= by:
            slot = waiting.pop()
            heappush(ready, (limit[slot], slot))
        if not ready or ready[0][0] < at:
            return None
        place[heappop(ready)[1]] = at
    return tuple(place)


NEVER = np.iinfo(np.int64).max // 4


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Free stretches of the stages of one pipeline, a row each, in the direction of time."""

    start: Ints
    end: Ints
    kind: Ints
    count: Ints

    def mirrored(self, step_ns: int) -> "Space":
        """Return the same on a clock that runs backward from the step's end."""
        shape = self.start.shape
        start, end, kind = np.zeros(shape, np.int64), np.zeros(shape, np.int64), self.kind.copy()
        for row, count in enumerate(self.count.tolist()):
            start[row, :count] = step_ns - self.end[row, count - 1 :: -1][:count]
            end[row, :count] = step_ns - self.start[row, count - 1 :: -1][:count]
            kind[row, :count] = self.kind[row, count - 1 :: -1][:count]
        return Space(start, end, kind, self.count)


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Microbatches placed on one pipeline: starts and times of kernels, arrival, what is left."""

    starts: Ints
    took: Ints
    done: Ints
    placed: int
    left: Space


def make_space(stretches: tuple[Stretches, ...]) -> Space:
    """Return the stretches of a pipeline's ranks side by side, padded to equal length."""
    count = np.array([len(rank.start) for rank in stretches], np.int64)
    shape = (len(stretches), int(count.max()))
    start, end, kind = (np.zeros(shape, np.int64) for _ in range(3))
    for row, rank in enumerate(stretches):
        start[row, : count[row]] = rank.start
        end[row, : count[row]] = rank.end
        kind[row, : count[row]] = rank.kind
    return Space(start, end, kind, count)


def fill(
    space: Space, work: StageKernels, ranks: tuple[int, ...], rows: Ints, extension: int, hop: int,
    stop: int = NEVER,
) -> Placed:  # fmt: skip
    """Place microbatches (rows of `work`) with the first gap extended by `extension` ns."""
    start = space.start.copy()
    start[space.kind[:, 0] == FREE, 0] -= extension
    ns = work.ns[list(ranks)] if work.ns.shape[0] > 1 else work.ns.repeat(len(ranks), 0)
    out = np.zeros((len(rows), len(ranks), len(work.resource)), np.int64)
    done = np.full(len(rows), NEVER, np.int64)
    placed = place(
        start, space.end, space.kind, space.count, work.resource, np.ascontiguousarray(ns),
        rows, work.release, -extension, hop, stop, out, done,
    )  # fmt: skip
    took = ns[:, rows].transpose(1, 0, 2)
    return Placed(out, took, done, placed, Space(start, space.end, space.kind, space.count))


def mirrored_work(work: StageKernels) -> StageKernels:
    """Return backward kernels in the order of the mirrored clock."""
    return StageKernels(
        np.ascontiguousarray(work.resource[::-1]),
        np.ascontiguousarray(work.ns[:, :, ::-1]),
        np.ascontiguousarray(work.release[::-1]),
    )


def enough(problem: FillProblem, work: StageKernels, most: int) -> int:
    """Return an extension in which everything fits one after another."""
    if not len(work.resource):
        return 0
    stages = len(problem.groups[0])
    slowest = int(work.per_microbatch_ns.max())
    wait = int(work.release.max(initial=0))
    return (most + stages) * (slowest + problem.hop_ns) + wait * len(work.release) + 1


def least(fits: Callable[[int], bool], high: int, tolerance_ns: int) -> int:
    """Return the least extension that fits, by bisection; `high` must fit.

    >>> least(lambda x: x >= 37, 100, 1)
    37
    """
    if fits(0):
        return 0
    low = 0
    while high - low > max(1, tolerance_ns):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
