"""A running job beside its plan: which assumption was off, and what it does to the step.

Measured is a cost profile (`counterpoise profile` fits one), or a step's timeline, of which one is
fitted. The plan's step is simulated again with one assumption at a time replaced by what was
measured, so each has a share of the difference; what is left after all of them is in no pass: hosts
that wait, cores that are shared, messages that come late.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from ...ir.kinds import is_ranked
from ...simulation.cost_profile import CostFunction, CostProfile, Resources, profile_costs
from ...simulation.fitting import fit_profile
from ...simulation.measured import MeasuredStep
from ...simulation.simulator import simulate
from .schema import JobFile

_NAMES = {
    "F": "forward", "B": "backward", "I": "input gradients", "W": "weight gradients",
    "O": "optimizer", "S": "output layer", "T": "output layer's gradients",
    "REDUCE_GRAD": "sum of gradients",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Deviation:
    """What was assumed and measured, in ns, and the step's change if only this is replaced.

    `what`: in words, such as "forward of stage 2".
    """

    what: str
    assumed_ns: int
    measured_ns: int
    step_change: float

    @property
    def change(self) -> float:
        """Return the change of the assumed time; 0 where nothing was assumed."""
        return self.measured_ns / self.assumed_ns - 1 if self.assumed_ns else 0.0


@dataclass(frozen=True, slots=True)
class Drift:
    """Steps in ns: as planned, simulated with all that was measured, and as measured (or None).

    `deviations`: those that change the step most come first.
    """

    planned_ns: int
    simulated_ns: int
    measured_ns: int | None
    deviations: tuple[Deviation, ...]


def compare(plan: JobFile, measured: CostProfile | MeasuredStep) -> Drift:
    """Return how what was measured differs from a plan.

    Raises ValueError for stages on other ranks, and for another number of microbatches.
    """
    step = measured if isinstance(measured, MeasuredStep) else None
    found = fit_profile([measured]).profile if isinstance(measured, MeasuredStep) else measured
    assumed = plan.costs
    if found.placement != assumed.placement:
        raise ValueError(
            f"measured are stages on ranks {list(found.placement)}, the plan has them on "
            f"{list(assumed.placement)}; measure the job that this plan runs"
        )
    program = plan.step_program()
    loads = list(step.microbatches if step else plan.microbatches)
    if len(loads) != program.microbatches:
        raise ValueError(
            f"measured are {len(loads)} microbatches, the plan has {program.microbatches}; measure "
            "a step of the plan's own size"
        )

    def step_ns(profile: CostProfile) -> int:
        return simulate(program, profile_costs(profile, loads)).makespan_ns

    planned, whole, deviations = step_ns(assumed), assumed, []
    for what, before, after, change in _changes(assumed, found, loads):
        deviations.append(Deviation(what, before, after, step_ns(change(assumed)) / planned - 1))
        whole = change(whole)
    deviations.sort(key=lambda one: -abs(one.step_change))
    makespan = step.timeline.makespan_ns if step else None
    return Drift(planned, step_ns(whole), makespan, tuple(deviations))


Change = Callable[[CostProfile], CostProfile]


def _changes(
    assumed: CostProfile, found: CostProfile, loads: Sequence[Resources]
) -> Iterator[tuple[str, int, int, Change]]:
    """Yield what both profiles have: in words, mean ns of both, and how to put one in place."""
    for kind in sorted(set(assumed.passes) & set(found.passes)):
        pairs = zip(assumed.entries(kind), found.entries(kind), strict=True)
        per_rank = "rank" if is_ranked(kind) else "stage"
        for at, pair in enumerate(pairs):
            before, after = (sum(f.cost_of(m) for m in loads) // len(loads) for f in pair)
            what = f"{_NAMES.get(kind, kind)} of {per_rank} {at}"
            yield what, before, after, partial(_with_pass, kind=kind, at=at, entry=pair[1])
    if found.p2p_ns:
        change: Change = partial(msgspec.structs.replace, p2p_ns=found.p2p_ns)
        yield "p2p", assumed.p2p_ns, found.p2p_ns, change
    for name in sorted(set(assumed.collectives) & set(found.collectives)):
        before, after = assumed.collectives[name], found.collectives[name]
        yield f"collective {name}", before, after, partial(_with_collective, name=name, ns=after)


def _with_pass(profile: CostProfile, kind: str, at: int, entry: CostFunction) -> CostProfile:
    rows = profile.entries(kind)
    passes = {**profile.passes, kind: (*rows[:at], entry, *rows[at + 1 :])}
    return msgspec.structs.replace(profile, passes=passes)


def _with_collective(profile: CostProfile, name: str, ns: int) -> CostProfile:
    return msgspec.structs.replace(profile, collectives={**profile.collectives, name: ns})
