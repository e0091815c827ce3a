"""Decide when to plan again: a state, and a step function from one measured step to the next.

Steps are looked at window by window. The median of a window's steps, measured over simulated, is
compared with what it was when the plan was made: a simulator leaves out messages and waiting for
cores, and does so all the time. Where the two are further apart than the threshold, passes take
other times than the profile says. The profile is then brought up to the measured times, whether or
not a better plan follows, so that one change of the machine is looked at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from ..ir.program import Program
from ..simulation.costs import Costs
from ..simulation.simulator import simulate
from .observation import Observation, span
from .profile import mean_costs, scaled_profile
from .settings import PERMILLE, Replan
from .state import PlanChange, PlanState, digest_of, digest_of_profile


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan is to be made of these costs; `measured_ns`: of the window's median step."""

    costs: Costs
    measured_ns: int


def first_state(settings: Replan, programs: Mapping[int, Program]) -> PlanState:
    """Return the state of a job before its first step."""
    return PlanState(digest_of(programs), tuple(sorted(programs)), settings.profile)


def observe(
    state: PlanState, settings: Replan, seen: Observation
) -> tuple[PlanState, Decision | None]:
    """Return the state after a step, and whether to plan again before the next one."""
    state, window = replace(state, steps=state.steps + 1), (*state.window, seen)
    if len(window) < settings.window:
        return replace(state, window=window), None
    state = _reported(replace(state, window=()), window)
    ratio = median_low(PERMILLE * one.span_ns // max(1, one.expected_ns) for one in window)
    if abs(ratio - state.usual) * PERMILLE <= settings.threshold_permille * state.usual:
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
    digest, measured_ns = digest_of_profile(state.profile), decision.measured_ns
    change = PlanChange(state.steps, digest, step_ns, step_ns, measured_ns)
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
    return median_low(one.span_ns for one in window if one.microbatches == last)
