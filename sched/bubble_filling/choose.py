"""The choice of a plan: fill the step with every encoder parallelism; the shortest step wins.

A step can never be shorter than the language model's own, so a plan whose host is already as long
as the best step is not filled; and whole kernels are tried before split ones only where asked.
Every schedule returned has passed the validator.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .bound import hidden_bound
from .encoder_plans import (
    EncoderPlan,
    Host,
    Memory,
    encoder_collectives,
    host_step,
    memory,
    plan_problem,
    plans,
)
from .gaps import Gaps
from .instance import FilledSchedule, FillProblem
from .search import Effort, fill_bubbles
from .setup import FillSetup, Splitting


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """A filled plan. `host` is the language model's step that it fills."""

    plan: EncoderPlan
    splitting: Splitting | None
    filled: FilledSchedule
    host: Host
    memory: Memory


@dataclass(frozen=True, slots=True)
class RejectedPlan:
    """A plan that is not possible, and the reason."""

    plan: EncoderPlan
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class PlanScan:
    """All filled plans, best first, and rejected ones. `skipped`: plans that cannot be better."""

    chosen: tuple[Chosen, ...]
    refused: tuple[RejectedPlan, ...]
    skipped: int

    @property
    def best(self) -> Chosen:
        """The plan of the shortest step. Raises ValueError, with reasons, if none is possible."""
        if self.chosen:
            return self.chosen[0]
        why = "; ".join(dict.fromkeys(one.why for one in self.refused)) or "there are no plans"
        raise ValueError(f"no encoder plan is possible: {why}")


def guarded(problem: FillProblem, percent: int, slack_ns: int = 0) -> FillProblem:
    """Return the problem with shorter bubbles inside the step and earlier deadlines.

    What fits it fits the real one, with room to spare. Raises ValueError for a percentage outside
    0 to 99.
    """
    if not 0 <= percent < 100 or slack_ns < 0:
        raise ValueError(f"guard of {percent} % and {slack_ns} ns; give 0 to 99 and 0 or more")
    gaps = problem.gaps
    ranks = []
    for one in gaps.ranks:
        end = one.end - (one.end - one.start) * percent // 100
        end[[0, -1]] = one.end[[0, -1]]
        ranks.append(replace(one, end=end))
    need = np.maximum(gaps.need_ns - slack_ns, 0)
    gradient = np.minimum(gaps.gradient_ns + slack_ns, gaps.step_ns)
    tight = Gaps(tuple(ranks), need, gradient, gaps.step_ns, gaps.first_rank)
    return replace(problem, gaps=tight)


def fitting(setup: FillSetup) -> tuple[Splitting, ...]:
    """Return ways to split so that one piece fits a tensor-parallel bubble, or two do.

    Empty where the language model has no such bubbles.
    """
    kernels = setup.model.layer.forward + setup.model.layer.backward
    bubble = max((k.ns for k in kernels if k.resource == "communication"), default=0)
    # A piece takes longer in that bubble than alone.
    bubble = bubble * 1000 // (1000 + setup.contention.compute)
    how = Splitting(1)
    sizes = [(bubble // n - how.launch_ns) * 100 // (100 + how.slower_percent) for n in (1, 2)]
    return tuple(replace(how, longest_ns=size) for size in sizes if size > how.launch_ns)


def fill_plan(problem: FillProblem, effort: Effort | None = None) -> FilledSchedule:
    """Fill a problem and add the upper bound of what could be hidden."""
    return replace(fill_bubbles(problem, effort), bound=hidden_bound(problem))


HostOf = Callable[[EncoderPlan], Host]


def shared_hosts(setup: FillSetup, *, whole_passes: bool = False) -> HostOf:
    """Return `host_step` of a job's plans, which simulates each different step once.

    All that a step depends on is the warm-up and the encoders' collectives.
    """
    known: dict[tuple[str, tuple[int, int]], Host] = {}

    def host(plan: EncoderPlan) -> Host:
        key = plan.warmup, encoder_collectives(setup, plan)
        if key not in known:
            known[key] = host_step(setup, plan, whole_passes=whole_passes)
        return known[key]

    return host


def scan(
    setup: FillSetup,
    *,
    candidates: Sequence[EncoderPlan] | None = None,
    splittings: Sequence[Splitting | None] = (None,),
    host_of: HostOf | None = None,
    prune: bool = True,
    guard: tuple[int, int] = (0, 0),
    permille: tuple[int, ...] | None = None,
    fixed: bool = False,
    layer_pieces: int = 0,
    most_copies: float = math.inf,
) -> PlanScan:
    """Fill every candidate plan (default: all) with every splitting.

    `host_of`: the step that a plan fills, by default of `shared_hosts`. With `prune`, plans that
    cannot beat the best are skipped. `guard`: as `guarded` takes it. `most_copies`: plans of a
    larger `Memory.copies` are refused. The others are as of `plan_problem`.
    """
    host_of = host_of or shared_hosts(setup)
    wanted = plans(setup) if candidates is None else candidates
    pairs = [(plan, host_of(plan)) for plan in wanted]
    pairs.sort(key=lambda p: (p[1].gaps.step_ns, -p[0].tensor, p[0].stages))
    chosen: list[Chosen] = []
    refused: list[RejectedPlan] = []
    skipped, best = 0, math.inf
    for plan, host in pairs:
        need = memory(setup, plan, host)
        if (copies := need.copies) > most_copies:
            why = f"copies of the encoders add {copies:.1%} of the model states"
            why += f", more than {most_copies:.1%}; allow more, or cut encoders further"
            refused.append(RejectedPlan(plan, why))
            continue
        for splitting in splittings:
            # Hosts come shortest step first: from here on nothing can be better.
            if prune and host.gaps.step_ns >= best:
                skipped += 1
                continue
            try:
                problem = plan_problem(
                    setup, plan, host, splitting=splitting, permille=permille, fixed=fixed,
                    layer_pieces=layer_pieces,
                )  # fmt: skip
            except ValueError as error:  # it does not fit, with whatever splitting
                refused.append(RejectedPlan(plan, str(error)))
                break
            filled = fill_plan(guarded(problem, *guard) if any(guard) else problem)
            chosen.append(Chosen(plan, splitting, filled, host, need))
            best = min(best, filled.step_ns)
    chosen.sort(key=lambda one: one.filled.step_ns)
    return PlanScan(tuple(chosen), tuple(refused), skipped)
