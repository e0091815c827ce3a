"""1F1B: one forward, one backward.

4 ranks, 6 microbatches, a backward twice as long as a forward:

    0: F0 F1 F2 F3 .. .. .. .. .. .. B0 B0 F4 B1 B1 F5 B2 B2 .. B3 B3 .. B4 B4 .. B5 B5
    1: .. F0 F1 F2 .. .. .. .. B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 .. B4 B4 .. B5 B5 .. ..
    2: .. .. F0 F1 .. .. B0 B0 F2 B1 B1 F3 B2 B2 F4 B3 B3 F5 B4 B4 .. B5 B5 .. .. .. ..
    3: .. .. .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 F5 B5 B5 .. .. .. .. .. ..

Rank r runs p - 1 - r forwards ahead (its warm-up), then alternates forwards and backwards, then
runs the remaining backwards. It holds at most p - r microbatches. PipeDream-Flush (Narayanan et
al., 2021).
"""

from collections.abc import Callable

from ..ir.program import Pass, Program, place
from ..ir.registry import register


@register("1f1b", "one forward, one backward (PipeDream-Flush)")
def one_forward_one_backward(*, ranks: int, microbatches: int, extra_warmup: int = 0) -> Program:
    """Return 1F1B's program, with `extra_warmup` more forwards ahead on every rank.

    More warm-up costs activation memory and hides uneven microbatches. Raises ValueError if it is
    negative.
    """
    if extra_warmup < 0:
        raise ValueError(f"extra_warmup is {extra_warmup}; give 0 or more forwards")
    rows = tuple(
        alternating(plain_order(r), ranks - 1 - r + extra_warmup, microbatches)
        for r in range(ranks)
    )
    return Program(rows, place(ranks), microbatches, name="1f1b")


# A rank's step-th forward ("F") or backward ("B").
Order = Callable[[str, int], Pass]


def plain_order(stage: int) -> Order:
    """Return the order of a rank with one stage: microbatch by microbatch."""
    return lambda kind, step: Pass(stage, kind, step)


def alternating(nth: Order, warmup: int, total: int) -> tuple[Pass, ...]:
    """Return a rank's row: `warmup` forwards, forwards and backwards in turn, the other backwards.

    `total`: the number of its forwards, and of its backwards.
    """
    warmup = min(warmup, total)
    row = [nth("F", step) for step in range(warmup)]
    for step in range(total - warmup):
        row += [nth("F", warmup + step), nth("B", step)]
    return (*row, *(nth("B", step) for step in range(total - warmup, total)))
