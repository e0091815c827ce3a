"""The settings of planning again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..ir.program import Program
from ..simulation.cost_profile import CostProfile
from ..simulation.costs import Costs
from ..simulation.timeline import Slot

PERMILLE = 1000
_MILLION = 10**6
# The program of (ranks, microbatches, costs).
MakeProgram = Callable[[int, int, Costs], Program]


@dataclass(frozen=True, slots=True)
class Replan:
    """Settings of how a pipeline follows the times that it measures.

    `program`: makes the program of (ranks, microbatches, costs), such as `with_encoders` of them;
    None leaves the program, and a loader that follows the pipeline orders by the profile alone.
    `profile`: what passes are thought to cost before the first step. `threshold`: the share by
    which a measured step has to be away from the simulated one. `window`: the steps whose median
    is looked at, one window after another. `gain`: the share of the step that a new plan has to
    save, in simulation, to be taken. `measure`: gives a step's passes with their times, from the
    step's number and the host's own; for devices that have a clock of their own.
    """

    program: MakeProgram | None
    profile: CostProfile
    threshold: float = 0.1
    window: int = 3
    gain: float = 0.01
    measure: Callable[[int, Sequence[Slot]], Sequence[Slot]] | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not (self.threshold > 0 and 0 <= self.gain < 1 and self.window >= 1):
            raise ValueError(
                f"replanning got a threshold of {self.threshold}, a gain of {self.gain} and a "
                f"window of {self.window} steps; give shares of the step, 0.1 or 0.01, and a "
                "window of 1 or more"
            )

    @property
    def threshold_permille(self) -> int:
        """Return the threshold in whole thousandths, so that all machines decide alike."""
        return round(PERMILLE * self.threshold)

    def worth(self, before_ns: int, after_ns: int) -> bool:
        """Return whether a plan saves enough.

        >>> plan = Replan(None, CostProfile((0,), {}), gain=0.02)
        >>> plan.worth(1000, 981), plan.worth(1000, 980)
        (False, True)
        """
        least = before_ns * round(_MILLION * self.gain)
        return (before_ns - after_ns) * _MILLION >= max(1, least)
