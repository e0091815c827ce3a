"""Matching of encoder results to the language model's microbatches.

A result must be there before the language model needs it (EF_i <= F_i) and its gradient be there
before the encoder goes back (EB_i >= B_i). So each can take the places of an interval, and both
directions must agree on one place. Optimus sorts the two directions independently; a data sample
could then go forward on one pipeline and backward on another. Here it is a matching of intervals,
which the earliest deadline first solves exactly.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from ..problem.gaps import Ints


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
