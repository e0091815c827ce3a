"""A schedule's program with encoder layers in the gaps between its passes."""

from collections.abc import Sequence
from dataclasses import replace

from ...ir.program import Program
from ...simulation.costs import Costs
from ..plan.executable import EncoderTimes, fill_between_passes
from .filled_program import fill_program


def with_encoders(
    program: Program,
    costs: Costs,
    encoders: Sequence[EncoderTimes],
    *,
    width: int = 1,
    fixed: bool = True,
) -> Program:
    """Return the program with a pass for each layer of the encoders, in its gaps.

    `costs`: of the program's passes. `width`: the ranks of an encoder pipeline, each with an equal
    share of every encoder's layers. `fixed`: whether the encoders keep the order of the
    microbatches, as they must where these differ. Raises ValueError as `fill_between_passes` does.

    >>> from counterpoise.sched import schedule, unit_costs
    >>> program = schedule("1f1b", ranks=2, microbatches=2)
    >>> made = with_encoders(program, unit_costs(10, 20), [EncoderTimes((3, 3), (6, 6))])
    >>> print(*made.ranks[1])
    1EF_A1 1EF_B1 1F0 1B0 1F1 1B1 1EB_B1 1EB_A1
    """
    host, filled = fill_between_passes(program, costs, encoders, width=width, fixed=fixed)
    return replace(fill_program(host, filled), name=f"{program.name} with encoders")
