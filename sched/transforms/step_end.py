"""Add the end of a step: sum the gradients over the replicas, then run the optimizer."""

from dataclasses import replace

from ..ir.kinds import kind
from ..ir.passes import Pass
from ..ir.program import Program


def with_step_end(program: Program) -> Program:
    """Return the program with a REDUCE_GRAD per stage and an O per rank after its passes.

    A rank's stages reduce in the order in which their last pass ends. Raises ValueError if the
    program has such passes already.

    >>> from counterpoise.sched import schedule
    >>> program = with_step_end(schedule("zbv", ranks=1, microbatches=1))
    >>> print(*program.ranks[0])
    0F0 1F0 1I0 1W0 0I0 0W0 1REDUCE_GRAD 0REDUCE_GRAD 0O
    """
    if any(item.kind in ("REDUCE_GRAD", "O") for row in program.ranks for item in row):
        raise ValueError("the program has REDUCE_GRAD or O already; add it only once")
    rows = []
    for rank, row in enumerate(program.ranks):
        order = {item.stage: at for at, item in enumerate(row) if kind(item.kind).scope == "stage"}
        stages = sorted(order, key=order.__getitem__)
        end = [*(Pass(stage, "REDUCE_GRAD") for stage in stages), Pass(rank, "O")]
        rows.append((*row, *end))
    return replace(program, ranks=tuple(rows))
