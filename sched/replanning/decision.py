"""Decide when to plan again: settings, a state, and a step function from one step to the next.

Steps are looked at window by window. The median of a window's steps, measured over simulated, is
compared with what it was when the plan was made: a simulator leaves out messages and waiting for
cores, and does so all the time. Where the two are further apart than the threshold, passes take
other times than the profile says. The profile is then brought up to the measured times, whether or
not a better plan follows, so that one change of the machine is looked at once.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

import msgspec

from ..ir.program import Program
from ..ir.typed_json import read_json
from ..simulation.cost_profile import CostProfile, dump_profile
from ..simulation.costs import Costs
from ..simulation.simulator import simulate
from ..simulation.timeline import Slot
from .observation import Observation, mean_costs, scaled_profile, span

PERMILLE = 1000
_MILLION = 10**6
# The program of (ranks, microbatches, costs).
MakeProgram = Callable[[int, int, Costs], Program]


@dataclass(frozen=True, slots=True)
class Replan:
    """Settings of how a pipeline follows the times that it measures.

    Args:
        program: Makes the program of (ranks, microbatches, costs), such as `with_encoders` of them;
            None leaves it, and a loader that follows the pipeline orders by the profile alone.
        profile: The CostProfile that holds before the first step.
        threshold: The share by which a step has to differ from the simulated one; default 0.1.
        window: Steps whose median is compared, one window after another; default 3.
        gain: The share of the simulated step that a new plan has to save; default 0.01.
        measure: From a step's number and the host's passes with times, those of a device that has a
            clock of its own; default: the host's.

    Raises ValueError for shares and windows that make no sense.
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

    def worth(self, before_ns: int, after_ns: int) -> bool:
        """Return whether a plan saves enough.

        >>> plan = Replan(None, CostProfile((0,), {}), gain=0.02)
        >>> plan.worth(1000, 981), plan.worth(1000, 980)
        (False, True)
        """
        return (before_ns - after_ns) * _MILLION >= max(1, before_ns * round(_MILLION * self.gain))


@dataclass(frozen=True, slots=True)
class PlanChange:
    """A plan, or costs to order by, that a pipeline has taken, and what it saves.

    Args:
        step: The number of the job's step before which it was taken, from 0.
        digest: Of the programs of the plan.
        before_ns: The step under the old plan, simulated with the measured times.
        after_ns: The step under the new one, likewise.
        measured_before_ns: The median step of the window before.
        measured_after_ns: That of the window after, 0 until it is over.
    """

    step: int
    digest: str
    before_ns: int
    after_ns: int
    measured_before_ns: int
    measured_after_ns: int = 0

    @property
    def gain(self) -> float:
        """Return the share of the step that the plan saves, simulated."""
        return 1 - self.after_ns / max(1, self.before_ns)

    @property
    def measured_gain(self) -> float:
        """Return the share of the step that it saved; 0 as long as it is not known."""
        after = self.measured_after_ns or self.measured_before_ns
        return 1 - after / max(1, self.measured_before_ns)


@dataclass(frozen=True, slots=True)
class PlanState:
    """The state of a job's plan, the same on every rank.

    `digest`: of the programs of `counts` microbatches. `profile`: what passes cost. `usual`:
    measured over simulated steps, in thousandths, when all is as planned. `steps`: of the job until
    now. `window`: those since the last look.
    """

    digest: str
    counts: tuple[int, ...]
    profile: CostProfile
    usual: int = PERMILLE
    steps: int = 0
    window: tuple[Observation, ...] = ()
    changes: tuple[PlanChange, ...] = ()


def digest_programs(programs: Mapping[int, Program]) -> str:
    """Return a digest of programs, by number of microbatches: 16 hexadecimal digits."""
    text = "\n\n".join(f"{count}\n{program}" for count, program in sorted(programs.items()))
    return _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def dump_state(state: PlanState) -> str:
    """Return a state as JSON; `load_state` reads it."""
    return msgspec.json.encode(state).decode()


def load_state(text: str) -> PlanState:
    """Return the state that JSON text holds. Raises ValueError, in one line, for another form."""
    return read_json(text, PlanState, "the plan's state")


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan is to be made of these costs; `measured_ns`: of the window's median step."""

    costs: Costs
    measured_ns: int


def first_state(settings: Replan, programs: Mapping[int, Program]) -> PlanState:
    """Return the state of a job before its first step."""
    return PlanState(digest_programs(programs), tuple(sorted(programs)), settings.profile)


def observe(
    state: PlanState, settings: Replan, seen: Observation
) -> tuple[PlanState, Decision | None]:
    """Return the state after a step, and whether to plan again before the next one."""
    state, window = replace(state, steps=state.steps + 1), (*state.window, seen)
    if len(window) < settings.window:
        return replace(state, window=window), None
    state = _reported(replace(state, window=()), window)
    ratio = median_low(PERMILLE * step.span_ns // max(1, step.expected_ns) for step in window)
    # In whole thousandths, so that all machines decide alike.
    if abs(ratio - state.usual) * PERMILLE <= round(PERMILLE * settings.threshold) * state.usual:
        return state, None
    costs = mean_costs(state.profile, window)
    state = replace(state, profile=scaled_profile(state.profile, window))
    return state, Decision(costs, _median_span(window))


def settled(state: PlanState, decision: Decision, before_ns: int) -> PlanState:
    """Return the state after a decision that leaves the plan as it is.

    `before_ns`: its step, simulated with the measured times.
    """
    return replace(state, usual=max(1, PERMILLE * decision.measured_ns // max(1, before_ns)))


def taken(state: PlanState, change: PlanChange, counts: Iterable[int]) -> PlanState:
    """Return the state with a new plan, which has programs of `counts` microbatches."""
    changes = (*state.changes, change)
    return replace(state, digest=change.digest, counts=tuple(sorted(counts)), changes=changes)


def reordered(state: PlanState, decision: Decision, step_ns: int) -> PlanState:
    """Return the state with new costs that leave the program and change what loaders plan by them.

    `step_ns`: of the program, simulated with mean times, which no order changes.
    """
    digest = _digest(dump_profile(state.profile))
    change = PlanChange(state.steps, digest, step_ns, step_ns, decision.measured_ns)
    return replace(state, changes=(*state.changes, change))


def step_ns(program: Program, costs: Costs) -> int:
    """Return the simulated time from a rank's first pass to its last, of the longest rank."""
    return span(simulate(program, costs).ranks)


def _reported(state: PlanState, window: Sequence[Observation]) -> PlanState:
    """Return the state with what the last change has come to, once a window has run with it."""
    if not state.changes or state.changes[-1].measured_after_ns:
        return state
    *before, last = state.changes
    last = replace(last, measured_after_ns=_median_span(window))
    return replace(state, changes=(*before, last))


def _median_span(window: Sequence[Observation]) -> int:
    """Return the median step, of those with as many microbatches as the last one."""
    last = window[-1].microbatches
    return median_low(step.span_ns for step in window if step.microbatches == last)
