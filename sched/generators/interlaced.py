"""Interlaced 1F1B: the output layer in tensor-parallel style, all ranks at the same time.

A baseline (nnScaler, 2024). Between any two intervals all ranks stop for the output layer of one
microbatch, which is divided over the ranks and has reductions in between:

    0: F B V   F B V        even ranks: forward first
    1: B F V   B F V        odd ranks: backward first, so that its forward finds rank 0's

A forward moves two ranks per interval, a backward one, so a microbatch stays p/2 + p intervals on
rank 0: 1.5 times as long as in 1F1B, with 1.5 times the activation memory. The time that V waits at
each barrier is idle.
"""

from ..ir.program import Barrier, Pass, Program, place
from ..ir.registry import register

BARRIERS = (
    Barrier("CX", "F", "last", (("every", "S"),)),
    Barrier("CS", "S", "every", (("every", "T"),), blocking=True),
    Barrier("CG", "T", "every", (("last", "B"),), blocking=True),
)


@register("1f1b-interlaced", "1F1B, all ranks stop for each output layer (baseline)")
def interlaced(*, ranks: int, microbatches: int) -> Program:
    """Return interlaced 1F1B's program."""
    rows = tuple(_row(rank, ranks, microbatches) for rank in range(ranks))
    return Program(rows, place(ranks), microbatches, BARRIERS, "1f1b-interlaced")


def _row(rank: int, ranks: int, microbatches: int) -> tuple[Pass, ...]:
    output = (ranks - 1) // 2
    backward = output + ranks - rank
    row = []
    for interval in range(microbatches + output + ranks):
        pair = [Pass(rank, "F", interval - rank // 2), Pass(rank, "B", interval - backward)]
        vocabulary = [Pass(rank, kind, interval - output) for kind in "ST"]
        row += pair[:: -1 if rank % 2 else 1] + vocabulary
    return tuple(pass_ for pass_ in row if 0 <= pass_.microbatch < microbatches)
