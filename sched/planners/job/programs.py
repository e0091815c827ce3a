"""Programs of plans: schedules, encoders' units in front of them, and copies in their bubbles."""

from collections.abc import Sequence
from typing import Any

from ...bubble_filling.filled_program import EncoderTimes
from ...ir.kinds import layer_kind
from ...ir.program import Pass, Program
from ...ir.registry import schedule
from ...simulation.costs import Costs
from ..orchestration.simulated import units_program
from ..orchestration.units import Unit
from .plan import ScheduleChoice


def schedule_of(chosen: ScheduleChoice, ranks: int, microbatches: int) -> Program:
    """Return the program of a schedule."""
    return schedule(chosen.name, ranks=ranks, microbatches=microbatches, **chosen.options)


def program_of(chosen: ScheduleChoice, pp: int, microbatches: int, encoder: Unit | None) -> Program:
    """Return the program of a step, with an encoder's unit in front if there is one."""
    if encoder is None:
        return schedule_of(chosen, pp, microbatches)
    return units_program((Unit(pp=encoder.pp), Unit(pp=pp, vpp=chosen.chunks)), microbatches)


def most_held(row: Sequence[Pass]) -> int:
    """Return the most microbatches that a rank's copy of an encoder holds at a time."""
    held = peak = 0
    for what in row:
        # From its first piece's forward to that piece's backward.
        held += (what.kind == layer_kind("EF", 0)) - (what.kind == layer_kind("EB", 0))
        peak = max(peak, held)
    return max(1, peak)


def times_of(costs: Costs) -> EncoderTimes:
    """Return an encoder's mean times by piece, and each microbatch's share of them."""
    tables: dict[str, Any] = dict(costs.pass_ns)
    forward, backward = (
        [tables[kind][0] for kind in sorted(tables) if kind.startswith(name)]
        for name in ("EF", "EB")
    )
    mean = [max(1, sum(row) // len(row)) for row in forward]
    back = [sum(row) // len(row) for row in backward]
    shares = tuple(max(1, 1000 * each // mean[0]) for each in forward[0])
    return EncoderTimes(tuple(mean), tuple(back) if any(back) else (), shares)
