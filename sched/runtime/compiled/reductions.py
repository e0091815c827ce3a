"""Add the reduction of each stage's gradients over data-parallel ranks, as early as possible."""

from dataclasses import replace

from ...ir.kinds import kind
from ...ir.passes import Pass
from ...ir.program import Program


def with_reductions(program: Program) -> Program:
    """Return the program with each stage's REDUCE_GRAD right after its last pass.

    The reduction runs beside the passes of the rank's other stages. A stage that has a REDUCE_GRAD
    keeps it where it is. Raises ValueError if a pass of the stage follows: its gradient would be
    left out.

    >>> from counterpoise.sched import schedule
    >>> print(*with_reductions(schedule("zbv", ranks=1, microbatches=1)).ranks[0])
    0F0 1F0 1I0 1W0 1REDUCE_GRAD 0I0 0W0 0REDUCE_GRAD
    """
    return replace(program, ranks=tuple(map(_with_reductions, program.ranks)))


def _with_reductions(row: tuple[Pass, ...]) -> tuple[Pass, ...]:
    last = {
        item.stage: at
        for at, item in enumerate(row)
        if kind(item.kind).scope == "stage" and kind(item.kind).role == "compute"
        if not kind(item.kind).once
    }
    reduced = {item.stage: at for at, item in enumerate(row) if item.kind == "REDUCE_GRAD"}
    for stage, at in reduced.items():
        if at < last.get(stage, -1):
            raise ValueError(f"{row[at]} comes before {row[last[stage]]}; put it after it")
    ends = {at: Pass(stage, "REDUCE_GRAD") for stage, at in last.items() if stage not in reduced}
    return tuple(p for at, item in enumerate(row) for p in (item, ends.get(at)) if p is not None)
