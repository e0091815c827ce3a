"""Tells a barrier's collective: a broadcast, a sum to one rank, or a gathering on all."""

from typing import Literal, NamedTuple

from ...ir.program import Barrier, Program


class Collective(NamedTuple):
    """A barrier's collective. `root`: the rank that broadcasts, or that gets the sum."""

    operation: Literal["broadcast", "sum", "gather"]
    root: int
    communicator: str


def collectives(program: Program) -> dict[str, Collective]:
    """Return the collective of each barrier by its name.

    >>> from counterpoise.sched import schedule
    >>> for name, found in collectives(schedule("1f1b-alg1", ranks=4, microbatches=4)).items():
    ...     print(name, found.operation, found.root)
    CX broadcast 3
    CS gather 0
    CG sum 3
    """
    return {barrier.name: _collective(program, barrier) for barrier in program.barriers}


def _collective(program: Program, barrier: Barrier) -> Collective:
    communicator = barrier.communicator or barrier.name
    ends = {"first": program.placement[0], "last": program.placement[-1]}
    if barrier.source in ends:
        return Collective("broadcast", ends[barrier.source], communicator)
    waiting = {where for where, _ in barrier.before}
    if len(waiting) == 1 and (where := waiting.pop()) in ends:
        return Collective("sum", ends[where], communicator)
    return Collective("gather", 0, communicator)
