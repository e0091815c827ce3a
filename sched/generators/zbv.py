"""ZBV: zero bubble on a V, with the memory of 1F1B on every rank.

Rank r holds stages r and 2p - 1 - r, so the last stage is on rank 0, where the first is: the
backward starts where the forward ends. 2 ranks, 3 microbatches, all passes of the same time:

    0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2 ...
    1: ... 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2

The first chunk runs ahead, then both chunks advance in turn, each I with its W. At the end, the W
that rank r has kept back fill the gaps. Qi et al., 2024 ("controllable memory"); the order is that
of torch.
"""

from ..ir.program import Pass, Program, place
from ..ir.registry import register
from .v_row import VRow


@register("zbv", "zero bubble on a V with the memory of 1F1B on every rank")
def zbv(*, ranks: int, microbatches: int) -> Program:
    """Return ZBV's program.

    With fewer than 2p - 1 microbatches it is the program of 2p - 1 without the others' passes.
    """
    count = max(2 * ranks - 1, microbatches)
    rows = tuple(
        tuple(p for p in _row(rank, ranks, count) if p.microbatch < microbatches)
        for rank in range(ranks)
    )
    return Program(rows, place(ranks, 2, "v"), microbatches, name="zbv")


def _row(rank: int, ranks: int, count: int) -> list[Pass]:
    row = VRow(rank, ranks)
    # Warm-up: the outer chunk runs ahead until the inner chunk's first forward can follow.
    for _ in range(2 * (ranks - rank) - 1):
        row.forward(0)
    for _ in range(rank):
        row.forward(1)
        row.forward(0)
    for _ in range(ranks - rank):
        _advance(row, 1)
    # Steady phase: a forward and a backward of each chunk in turn.
    while row.count("F", 1) < count:
        if row.count("F", 0) < count:
            row.forward(0)
        row.inputs(0)
        row.weights(0)
        _advance(row, 1)
    # Cool-down: first I, which the other ranks wait for, then the W that are left.
    for _ in range(rank):
        row.inputs(0)
        row.inputs(1)
    for _ in range(ranks - rank):
        row.inputs(0)
        row.weights(0)
    for chunk in (1, 0):
        for _ in range(len(row.pending)):
            row.weights(chunk)
    return row.passes


def _advance(row: VRow, chunk: int) -> None:
    row.forward(chunk)
    row.inputs(chunk)
    row.weights(chunk)
