"""The loops of filling and replay, compiled by numba; importing this module imports numba."""

import numpy as np
from numba import njit

from .gaps import Ints


@njit(cache=True, nogil=True)
def place(
    start: Ints,
    end: Ints,
    kind: Ints,
    count: Ints,
    resource: Ints,
    ns: Ints,
    rows: Ints,
    release: Ints,
    slower: Ints,
    begin: int,
    hop: int,
    stop: int,
    out: Ints,
    took: Ints,
    done: Ints,
) -> int:
    """Place microbatches one after another, each kernel as early as possible.

    `start`, `end`, `kind` (stages, stretches), `count` (stages): the free time of each stage;
    `start` moves past what is used. `resource` (kernels): 0 compute, 1 communication; `ns` (stages,
    rows, kernels): their times; `rows`: each microbatch's row. `release` (kernels): delay after
    `begin` of the first microbatch's kernels. `slower` (2): permille that a kernel of a resource
    takes longer beside the host's. Fills `out` (microbatches, stages, kernels) with starts, `took`,
    zeros before, with times, and `done` with the time at which each result has arrived. Returns the
    number of microbatches placed with `done` up to `stop`.
    """
    stages, kernels = start.shape[0], resource.shape[0]
    # Per stage: the stretch that placing has reached, and the end of the last kernel.
    at = np.zeros(stages, np.int64)
    now = np.full(stages, begin, np.int64)
    for j in range(rows.shape[0]):
        ready = begin
        for s in range(stages):
            t = max(now[s], ready)
            c = at[s]
            for q in range(kernels):
                length = ns[s, rows[j], q]
                if length == 0:  # padding of a microbatch with fewer pieces
                    out[j, s, q] = t
                    continue
                contended = length + (length * slower[resource[q]] + 999) // 1000
                # FREE takes anything; COMMUNICATING only computation, COMPUTING only communication.
                other = 1 if resource[q] == 0 else 2
                if j == 0 and t < begin + release[q]:
                    t = begin + release[q]
                while c < count[s]:
                    stretch = kind[s, c]
                    if stretch == 0 or stretch == other:
                        first = max(t, start[s, c])
                        needed = length if stretch == 0 else contended
                        if first + needed <= end[s, c]:
                            t = first
                            length = needed
                            break
                    c += 1
                if c == count[s]:
                    return j
                out[j, s, q] = t
                took[j, s, q] = length
                t += length
                start[s, c] = t
            at[s] = c
            now[s] = t
            ready = t + hop
        done[j] = ready
        if ready > stop:
            return j
    return len(rows)


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
