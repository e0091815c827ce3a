"""Add the reduction of each stage's gradients over data-parallel ranks, as early as possible."""

from dataclasses import replace

from ...ir.kinds import kind
from ...ir.passes import Pass
from ...ir.program import Program


def with_reductions(program: Program) -> Program:
    """Return the program with each stage's REDUCE_GRAD right after its last pass.

    The reduction runs beside the passes of the rank's other stages. A program that has
    REDUCE_GRAD passes keeps its own.

    >>> from counterpoise.sched import schedule
    >>> print(*with_reductions(schedule("zbv", ranks=1, microbatches=1)).ranks[0])
    0F0 1F0 1I0 1W0 1REDUCE_GRAD 0I0 0W0 0REDUCE_GRAD
    """
    rows = program.ranks
    if any(item.kind == "REDUCE_GRAD" for row in rows for item in row):
        return program
    return replace(program, ranks=tuple(map(_with_reductions, rows)))


def _with_reductions(row: tuple[Pass, ...]) -> tuple[Pass, ...]:
    last = {
        item.stage: at
        for at, item in enumerate(row)
        if kind(item.kind).scope == "stage" and kind(item.kind).role == "compute"
    }
    ends = {at: Pass(stage, "REDUCE_GRAD") for stage, at in last.items()}
    return tuple(p for at, item in enumerate(row) for p in (item, ends.get(at)) if p is not None)
