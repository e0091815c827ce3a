"""Optimus' three cases, scaled to four ranks: programs and times of passes that sleep.

The paper's jobs (Table 7) have 32, 24 and 16 microbatches in 8 pipeline ranks; here it is 16, 12
and 8 in 4. The encoders take the same share of the step as ViT-22B's beside GPT-175B, a sixth of
the language model's computation, a third of it forward with recomputation counted backward.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from counterpoise.sched.bubble_filling.filled_program import (
    EncoderTimes,
    fill_between_passes,
    fill_program,
)
from counterpoise.sched.ir.kinds import layer_kind
from counterpoise.sched.ir.program import Program
from counterpoise.sched.ir.registry import schedule
from counterpoise.sched.runtime.encoders.placement import is_encoder
from counterpoise.sched.simulation.costs import Costs
from counterpoise.sched.simulation.simulator import simulate

RANKS = 4
_MS = 1_000_000


class Plans(NamedTuple):
    """The three programs that are compared.

    `filled`: with the encoders in the gaps. `first`: all encoder forwards before and all backwards
    after the language model's passes. `alone`: the language model without encoders.
    """

    filled: Program
    first: Program
    alone: Program


@dataclass(frozen=True)
class EncoderCase:
    """A job whose passes sleep.

    `forward`, `backward`: ms of the language model's stages; `layer_forward`, `layer_backward`: of
    an encoder layer. `layers`: of the encoder, in pipelines of `width` ranks.
    """

    name: str
    microbatches: int
    schedule: str = "1f1b"
    forward: int = 80
    backward: int = 160
    layer_forward: int = 20
    layer_backward: int = 60
    layers: int = 2
    width: int = 1

    @property
    def encoder(self) -> EncoderTimes:
        """Return the encoder's times."""
        both = (self.layer_forward * _MS, self.layer_backward * _MS)
        forward, backward = ((ns,) * self.layers for ns in both)
        return EncoderTimes(forward, backward)

    @property
    def encoder_ns(self) -> int:
        """Return the encoder's time on each rank."""
        one = self.encoder
        return self.microbatches * (sum(one.forward_ns) + sum(one.backward_ns)) // RANKS

    def costs(self) -> Costs:
        """Return the times of all passes; messages take none."""
        times = {"F": self.forward * _MS, "B": self.backward * _MS}
        for layer in range(self.layers // self.width):
            times[layer_kind("EF", layer)] = self.layer_forward * _MS
            times[layer_kind("EB", layer)] = self.layer_backward * _MS
        return Costs(times)

    @cached_property
    def planned(self) -> tuple[Plans, float]:
        """Return the programs, and the hidden share that the plan promises."""
        base = schedule(self.schedule, ranks=RANKS, microbatches=self.microbatches)
        host, filled = fill_between_passes(base, self.costs(), [self.encoder], width=self.width)
        made = fill_program(host, filled)
        return Plans(made, encoders_first(made), base), filled.efficiency

    def simulated_ns(self) -> dict[str, int]:
        """Return the simulated makespan of each program."""
        costs, plans = self.costs(), self.planned[0]
        return {
            name: simulate(program, costs).makespan_ns for name, program in plans._asdict().items()
        }


def encoders_first(program: Program) -> Program:
    r"""Return the program with all encoder forwards before its passes, all backwards after them.

    >>> from counterpoise.sched import parse_program
    >>> text = "placement: 0\nmicrobatches: 1\nedges: 0EF0->0F0 0B0->0EB0\n0: 0EF0 0F0 0B0 0EB0"
    >>> print(*encoders_first(parse_program(text)).ranks[0])
    0EF0 0F0 0B0 0EB0
    """
    rows = []
    for row in program.ranks:
        before = [item for item in row if is_encoder(item, "EF")]
        after = [item for item in row if is_encoder(item, "EB")]
        rest = [item for item in row if not is_encoder(item)]
        rows.append((*before, *rest, *after))
    return replace(program, ranks=tuple(rows), name=f"{program.name}, first")


CASES = (
    EncoderCase("32 microbatches in 8 ranks: 16 in 4", 16),
    EncoderCase("24 microbatches in 8 ranks: 12 in 4", 12),
    EncoderCase("16 microbatches in 8 ranks: 8 in 4", 8),
)
