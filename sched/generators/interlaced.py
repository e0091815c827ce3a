"""Interlaced 1F1B: the output layer in tensor-parallel style, all ranks at the same time.

A baseline (nnScaler, 2024). Between any two intervals all ranks stop for the output layer of one
microbatch, cut over the ranks, with its reductions on the way:

    0: F B V   F B V        even ranks: forward first
    1: B F V   B F V        odd ranks: backward first, so that its forward finds rank 0's

A forward passes two ranks an interval, a backward one, so a microbatch stays p/2 + p intervals on
rank 0: half as long again as in 1F1B, and so is the activation memory. What V waits for at each
barrier is idle time.
"""

from ..ir.passes import Pass
from ..ir.program import Barrier, Program, place
from ..ir.registry import register

BARRIERS = (
    Barrier("CX", "F", "last", (("every", "S"),)),
    Barrier("CS", "S", "every", (("every", "T"),), blocking=True),
    Barrier("CG", "T", "every", (("last", "B"),), blocking=True),
)


@register("1f1b-interlaced", "1F1B, all ranks stop for each output layer (baseline)")
def interlaced(*, ranks: int, microbatches: int) -> Program:
    """Interlaced 1F1B."""
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
    return tuple(item for item in row if 0 <= item.microbatch < microbatches)
