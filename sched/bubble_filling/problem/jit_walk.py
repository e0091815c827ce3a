"""The walk over a graph of kernels, compiled by numba; importing this module imports numba."""

import numpy as np
from numba import njit

from .gaps import Ints


@njit(cache=True, nogil=True)
def walk(order: Ints, first: Ints, source: Ints, lag: Ints, ns: Ints) -> Ints:
    """Return each node's start: the latest end of a predecessor plus the edge's lag.

    `order`: a topological order. `first[n]` to `first[n + 1]`: node n's edges in `source`, `lag`.
    """
    start = np.zeros(len(ns), np.int64)
    for at in range(len(order)):
        node = order[at]
        best = 0
        for edge in range(first[node], first[node + 1]):
            reached = start[source[edge]] + ns[source[edge]] + lag[edge]
            best = max(best, reached)
        start[node] = best
    return start
