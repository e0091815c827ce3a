"""Leave a program's forward passes, to evaluate a model by the schedule that trains it."""

from collections.abc import Collection
from dataclasses import replace

from ...ir.kinds import kind
from ...ir.passes import Pass
from ...ir.program import Barrier, Program

# T and G are left: they read the statistics of all ranks, from which the loss is computed.
_BACKWARD = frozenset(("B", "I", "W", "C", "IB", "GB"))


def forward_only(program: Program) -> Program:
    """Return the program with its forward passes in their order, and the barriers between them.

    It is as free of deadlock as the program is: all that its passes wait for was before them there.

    >>> from counterpoise.sched import schedule
    >>> print(*forward_only(schedule("1f1b-alg2", ranks=2, microbatches=1)).ranks[1])
    1F0 1S0 1T0
    """
    rows = tuple(tuple(filter(_is_forward, row)) for row in program.ranks)
    left = {item.kind for row in rows for item in row}
    barriers = tuple(one for barrier in program.barriers if (one := _left_of(barrier, left)))
    edges = tuple(edge for edge in program.edges if all(map(_is_forward, edge)))
    return replace(program, ranks=rows, barriers=barriers, edges=edges)


def _is_forward(item: Pass) -> bool:
    # EB and a letter are an encoder's backward.
    encoder = item.kind.startswith("EB")
    return item.kind not in _BACKWARD and not encoder and not kind(item.kind).once


def _left_of(barrier: Barrier, kinds: Collection[str]) -> Barrier | None:
    """Return a barrier for those of its passes that are left; None if it has no use without."""
    before = tuple(target for target in barrier.before if target[1] in kinds)
    if barrier.after not in kinds or not before:
        return None
    return replace(barrier, before=before)
