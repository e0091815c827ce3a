"""The choice of a plan: fill the step with every encoder parallelism; the shortest step wins.

A step can never be shorter than the language model's own, so a plan whose host is already as long
as the best step is not filled; and whole kernels are tried before split ones only where asked.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
from .instance import FilledSchedule
from .search import fill_bubbles
from .setup import FillSetup, Splitting


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """A filled plan. `host` is the language model's step that it fills."""

    plan: EncoderPlan
    splitting: Splitting | None
    filled: FilledSchedule
    host: Host
    memory: Memory


@dataclass(frozen=True, slots=True, eq=False)
class PlanScan:
    """All filled plans, best first, and rejected ones, with why. `skipped`: cannot be better."""

    chosen: tuple[Chosen, ...]
    refused: tuple[tuple[EncoderPlan, str], ...]
    skipped: int

    @property
    def best(self) -> Chosen:
        """The plan of the shortest step. Raises ValueError, with reasons, if none is possible."""
        if self.chosen:
            return self.chosen[0]
        why = "; ".join(dict.fromkeys(why for _, why in self.refused)) or "there are no plans"
        raise ValueError(f"no encoder plan is possible: {why}")


def fitting(setup: FillSetup) -> tuple[Splitting, ...]:
    """Return ways to split so that one piece fits a tensor-parallel bubble, or two do.

    Empty where the language model has no such bubbles.
    """
    kernels = setup.model.layer.forward + setup.model.layer.backward
    bubble = max((k.ns for k in kernels if k.resource == "communication"), default=0)
    how = Splitting(1)
    sizes = [(bubble // n - how.launch_ns) * 100 // (100 + how.slower_percent) for n in (1, 2)]
    return tuple(replace(how, longest_ns=size) for size in sizes if size > how.launch_ns)


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
    most_copies: float = math.inf,
    executable: bool = False,
) -> PlanScan:
    """Fill every candidate plan (default: all) with every splitting.

    `host_of`: the step that a plan fills, by default of `shared_hosts`. With `prune`, plans that
    cannot beat the best are skipped. `most_copies`: plans of a larger `Memory.copies` are refused.
    `executable`: only whole layers, between passes, as a runtime runs any.
    """
    host_of = host_of or shared_hosts(setup, whole_passes=executable)
    candidates = plans(setup) if candidates is None else candidates
    pairs = [(plan, host_of(plan)) for plan in candidates]
    pairs.sort(key=lambda p: (p[1].gaps.step_ns, -p[0].tensor, p[0].stages))
    chosen: list[Chosen] = []
    refused: list[tuple[EncoderPlan, str]] = []
    skipped, best = 0, math.inf
    for plan, host in pairs:
        need = memory(setup, plan, host)
        if (copies := need.copies) > most_copies:
            why = f"copies of the encoders add {copies:.1%} of the model states"
            why += f", more than {most_copies:.1%}; name the plan, or cut encoders further"
            refused.append((plan, why))
            continue
        for splitting in splittings:
            # Hosts come shortest step first: from here on nothing can be better.
            if prune and host.gaps.step_ns >= best:
                skipped += 1
                continue
            try:
                problem = plan_problem(
                    setup, plan, host, splitting=splitting, whole_layers=executable
                )
            except ValueError as error:  # it does not fit, with whatever splitting
                refused.append((plan, str(error)))
                break
            filled = fill_bubbles(problem)
            chosen.append(Chosen(plan, splitting, filled, host, need))
            best = min(best, filled.step_ns)
    chosen.sort(key=lambda plan: plan.filled.step_ns)
    return PlanScan(tuple(chosen), tuple(refused), skipped)
