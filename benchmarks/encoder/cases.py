"""Optimus' three cases, scaled to four ranks: programs and times of passes that sleep.

The paper's jobs (Table 7) have 32, 24 and 16 microbatches in 8 pipeline ranks; here it is 16, 12
and 8 in 4. The encoders take the same share of the step as ViT-22B's beside GPT-175B, a sixth of
the language model's computation, a third of it forward with recomputation counted backward.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from counterpoise.sched.bubble_filling.encoder_plans import Host
from counterpoise.sched.bubble_filling.filled_program import (
    EncoderTimes,
    fill_between_passes,
    fill_program,
)
from counterpoise.sched.bubble_filling.instance import FilledSchedule
from counterpoise.sched.bubble_filling.setup import Kernel, Resource
from counterpoise.sched.ir.kinds import layer_kind
from counterpoise.sched.ir.program import Program
from counterpoise.sched.ir.registry import schedule
from counterpoise.sched.runtime.encoders.placement import is_encoder
from counterpoise.sched.simulation.costs import Costs
from counterpoise.sched.simulation.simulator import simulate

RANKS = 4
_MS = 1_000_000
# Of a layer, and of a pass, where passes run inside of others.
PIECES, POINTS = 4, 2


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
    an encoder layer. `layers`: of the encoder, in pipelines of `width` ranks, each cut into
    `pieces`. `points`: of a pass of the language model, at which it waits for a quarter of its time
    in all; 0 without.
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
    pieces: int = 1
    points: int = 0

    @property
    def encoder(self) -> EncoderTimes:
        """Return the encoder's times."""
        both = (self.layer_forward * _MS, self.layer_backward * _MS)
        count = self.layers * self.pieces
        forward, backward = ((ns // self.pieces,) * count for ns in both)
        return EncoderTimes(forward, backward)

    @property
    def encoder_ns(self) -> int:
        """Return the encoder's time on each rank."""
        one = self.encoder
        return self.microbatches * (sum(one.forward_ns) + sum(one.backward_ns)) // RANKS

    def costs(self) -> Costs:
        """Return the times of all passes; messages take none."""
        times = {"F": self.forward * _MS, "B": self.backward * _MS}
        encoder = self.encoder
        for layer in range(self.layers * self.pieces // self.width):
            times[layer_kind("EF", layer)] = encoder.forward_ns[layer]
            times[layer_kind("EB", layer)] = encoder.backward_ns[layer]
        return Costs(times)

    @cached_property
    def planned(self) -> tuple[Plans, float]:
        """Return the programs, and the hidden share that the plan promises."""
        base = schedule(self.schedule, ranks=RANKS, microbatches=self.microbatches)
        host, filled = self._filled(base)
        made = fill_program(host, filled)
        return Plans(made, encoders_first(made), base), filled.efficiency

    @property
    def kernel_level(self) -> float:
        """Return the hidden share that a plan of small pieces inside passes, too, promises."""
        base = schedule(self.schedule, ranks=RANKS, microbatches=self.microbatches)
        return replace(self, pieces=PIECES, points=POINTS)._filled(base)[1].efficiency

    def _filled(self, base: Program) -> tuple[Host, FilledSchedule]:
        share: dict[Resource, int] = {"compute": 3, "communication": 1}
        inside = {
            kind: [
                Kernel(resource, resource, ms * _MS * quarters // (4 * self.points))
                for _ in range(self.points)
                for resource, quarters in share.items()
            ]
            for kind, ms in (("F", self.forward), ("B", self.backward))
        }
        encoders, given = [self.encoder], inside if self.points else None
        return fill_between_passes(base, self.costs(), encoders, width=self.width, inside=given)

    def simulated_ns(self) -> dict[str, int]:
        """Return the simulated makespan of each program, the filled one's as it is planned."""
        costs, plans = self.costs(), self.planned[0]
        found = {
            name: simulate(program, costs).makespan_ns for name, program in plans._asdict().items()
        }
        if self.points:  # the simulator runs one pass after another
            base = schedule(self.schedule, ranks=RANKS, microbatches=self.microbatches)
            found["filled"] = self._filled(base)[1].step_ns
        return found


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


WHOLE = (
    EncoderCase("32 microbatches in 8 ranks: 16 in 4", 16),
    EncoderCase("24 microbatches in 8 ranks: 12 in 4", 12),
    EncoderCase("16 microbatches in 8 ranks: 8 in 4", 8),
)
# Twice as long, since sleeps of a few ms end late on cores that are shared.
INSIDE = tuple(
    replace(
        one, name=f"{one.microbatches} in 4, inside passes", forward=2 * one.forward,
        backward=2 * one.backward, layer_forward=2 * one.layer_forward,
        layer_backward=2 * one.layer_backward, pieces=PIECES, points=POINTS,
    )
    for one in WHOLE
)  # fmt: skip
CASES = (*WHOLE, *INSIDE)
