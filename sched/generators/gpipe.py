"""GPipe: all forwards, then all backwards.

4 ranks, 4 microbatches, a backward twice as long as a forward:

    0: F0 F1 F2 F3 .. .. .. .. .. .. .. .. .. B0 B0 B1 B1 B2 B2 B3 B3
    1: .. F0 F1 F2 F3 .. .. .. .. .. .. B0 B0 B1 B1 B2 B2 B3 B3 .. ..
    2: .. .. F0 F1 F2 F3 .. .. .. B0 B0 B1 B1 B2 B2 B3 B3 .. .. .. ..
    3: .. .. .. F0 F1 F2 F3 B0 B0 B1 B1 B2 B2 B3 B3 .. .. .. .. .. ..

Every rank holds all microbatches. Huang et al., 2019.
"""

from ..ir.program import Pass, Program, place
from ..ir.registry import register


@register("gpipe", "all forwards, then all backwards")
def gpipe(*, ranks: int, microbatches: int) -> Program:
    """Return GPipe's program, with the backwards in the order of the forwards."""
    rows = tuple(
        tuple(Pass(rank, kind, m) for kind in "FB" for m in range(microbatches))
        for rank in range(ranks)
    )
    return Program(rows, place(ranks), microbatches, name="gpipe")
