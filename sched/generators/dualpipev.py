"""DualPipeV: a V on which a forward of one chunk meets a backward of the other.

In the steady phase each forward is next to a backward of the rank's other chunk, so that the
communication of one (the all-to-all of mixture-of-experts layers) can overlap with the computation
of the other. 2 ranks, 4 microbatches:

    0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3B1 3F2 0B0 0B0 3B2 3B2 3F3 ... 0B1 0B1 3B3 ...
    1: ... 1F0 2F0 1F1 2F1 1F2 2B0 2B0 2F2 1B0 1B0 1F3 2B1 2B1 2F3 1B1 1B1 2B2 2B2 1B2 ...

Half of DualPipe (DeepSeek-V3 report, 2024; Sea AI Lab's variant); the order is torch's, its
overlapped pairs written one after the other, forward first.
"""

from ..ir.program import Pass, Program, place
from ..ir.registry import register
from .v_row import VRow


@register("dualpipev", "forwards and backwards of two chunks meet on a V (DeepSeek)")
def dualpipev(*, ranks: int, microbatches: int) -> Program:
    """Return DualPipeV's program.

    Raises ValueError for fewer microbatches than stages (two per rank).
    """
    if microbatches < 2 * ranks:
        raise ValueError(
            f"dualpipev needs at least as many microbatches as its {2 * ranks} stages, "
            f"got {microbatches}; use {2 * ranks} or more"
        )
    rows = tuple(tuple(_row(rank, ranks, microbatches)) for rank in range(ranks))
    return Program(rows, place(ranks, 2, "v"), microbatches, name="dualpipev")


def _row(rank: int, ranks: int, microbatches: int) -> list[Pass]:
    row = VRow(rank, ranks)
    behind = ranks - rank - 1
    # Warm-up: forwards of the outer chunk, then of both, until the inner chunk's first backward.
    for _ in range(2 * behind):
        row.forward(0)
    for _ in range(rank + 1):
        row.forward(0)
        row.forward(1)
    for _ in range(behind):
        row.inputs(1)
        row.weights()
        row.forward(1)
    # Steady phase: each forward next to a backward of the other chunk.
    for _ in range(microbatches - 2 * ranks + rank + 1):
        row.forward(0)
        row.backward(1)
        row.forward(1)
        row.backward(0)
    # Cool-down: the inner chunk's last forwards, then backwards, of which the later ones are split.
    for _ in range(behind):
        row.backward(1)
        row.forward(1)
        row.backward(0)
    for turn in range(2 * (rank + 1)):
        _backward(row, 1 - turn % 2, turn > rank)
    for _ in range(behind):
        row.weights()
        _backward(row, 0, True)
    for _ in range(rank + 1):
        row.weights()
    return row.passes


def _backward(row: VRow, chunk: int, split: bool) -> None:
    """Add a backward of a chunk; if split, its W comes later."""
    (row.inputs if split else row.backward)(chunk)
