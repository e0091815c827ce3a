"""The walk of filling: plain Python that Cython compiles when the package is built."""

import numpy as np
from numpy.typing import NDArray

from . import cython

if not cython.compiled:
    # In compiled.pyx these are types of C: numbers of 64 bits, and int64 arrays of one to three
    # dimensions, C-contiguous and writable.
    Int = int
    Vector = NDArray[np.int64]
    Matrix = NDArray[np.int64]
    Cube = NDArray[np.int64]


def place(
    start: Matrix, end: Matrix, kind: Matrix, count: Vector, resource: Vector, ns: Cube,
    rows: Vector, release: Vector, begin: Int, hop: Int, stop: Int, out: Cube, done: Vector,
) -> int:  # fmt: skip
    """Place microbatches one after another, each kernel as early as possible.

    `start`, `end`, `kind` (stages, stretches), `count` (stages): the free time of each stage;
    `start` moves past what is used. `resource` (kernels): 0 compute, 1 communication; `ns` (stages,
    rows, kernels): their times; `rows`: each microbatch's row. `release` (kernels): delay after
    `begin` of the first microbatch's kernels. Fills `out` (microbatches, stages, kernels) with
    starts, and `done` with the time at which each result has arrived. Returns the number of
    microbatches placed with `done` up to `stop`.
    """
    # Per stage: the stretch that placing has reached, and the end of the last kernel.
    at: Vector = np.zeros(start.shape[0], np.int64)
    now: Vector = np.full(start.shape[0], begin, np.int64)
    for j in range(rows.shape[0]):
        ready: Int = begin
        for s in range(start.shape[0]):
            t: Int = max(now[s], ready)
            c: Int = at[s]
            for q in range(resource.shape[0]):
                length: Int = ns[s, rows[j], q]
                if length == 0:  # padding of a microbatch with fewer pieces
                    out[j, s, q] = t
                    continue
                # FREE takes anything; COMMUNICATING only computation, COMPUTING only communication.
                shared = 1 if resource[q] == 0 else 2
                if j == 0 and t < begin + release[q]:
                    t = begin + release[q]
                while c < count[s]:
                    stretch = kind[s, c]
                    if stretch == 0 or stretch == shared:
                        first: Int = max(t, start[s, c])
                        if first + length <= end[s, c]:
                            t = first
                            break
                    c += 1
                if c == count[s]:
                    return j
                out[j, s, q] = t
                t += length
                start[s, c] = t
            at[s] = c
            now[s] = t
            ready = t + hop
        done[j] = ready
        if ready > stop:
            return j
    return len(rows)
