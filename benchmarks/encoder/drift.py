"""A stage that becomes slower while a job runs: what planning again wins back.

Two pipelines train the same sleeping stages. One follows the times that it measures; once its plan
has changed, it runs in turn with the other one, which keeps its plan.
"""

import statistics
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from counterpoise.sched.bubble_filling.filled_program import encoder_times, with_encoders
from counterpoise.sched.ir.program import Program
from counterpoise.sched.ir.registry import schedule
from counterpoise.sched.replanning.decision import PlanChange, Replan
from counterpoise.sched.simulation.cost_profile import CostFunction, CostProfile
from counterpoise.sched.simulation.costs import Costs
from counterpoise.sched.simulation.simulator import simulate

from ..runtime.rank_processes import RankProcesses
from .cases import RANKS, EncoderCase
from .ranks import sleeping_pipe, sleeping_step

Report = dict[str, Any]
_MS = 1_000_000
# The part of what can be won that has to be, and the steps within which the plan changes.
SHARE, WITHIN = 0.8, 10


@dataclass(frozen=True)
class DriftCase:
    """A job of which the stage `slow` takes `factor` times as long from step `start` on."""

    case: EncoderCase
    slow: int = 1
    factor: float = 1.5
    start: int = 20

    @cached_property
    def profile(self) -> CostProfile:
        """Return what passes cost before `start`."""
        times = self.case.costs().pass_ns
        fixed = {kind: (CostFunction(ns),) for kind, ns in times.items() if isinstance(ns, int)}
        return CostProfile(tuple(range(RANKS)), fixed)

    def costs(self, step: int) -> Costs:
        """Return what passes take in a step."""
        factors = [self.factor if (s, step >= self.start) == (self.slow, True) else 1
                   for s in range(RANKS)]  # fmt: skip
        times = {kind: entries[0].fixed for kind, entries in self.profile.passes.items()}
        slowed = {kind: [round(f * times[kind]) for f in factors] for kind in "FB"}
        return Costs({**{kind: [ns] * RANKS for kind, ns in times.items()}, **slowed})

    def program(self, step: int) -> Program:
        """Return the program that is planned with the times of a step."""
        return plan_case(self.case, RANKS, self.case.microbatches, self.costs(step))

    @cached_property
    def simulated_ns(self) -> tuple[int, int]:
        """Return the steps after `start`, by the plan from before and by the one for its times."""
        costs = self.costs(self.start)
        old, new = (simulate(self.program(step), costs) for step in (0, self.start))
        return old.makespan_ns, new.makespan_ns


def plan_case(case: EncoderCase, ranks: int, microbatches: int, costs: Costs) -> Program:
    """Return the case's program for these costs."""
    base = schedule(case.schedule, ranks=ranks, microbatches=microbatches)
    return with_encoders(base, costs, encoder_times(costs, [case.layers]))


# Times that leave a plan something to win: an encoder of four layers.
DRIFT = DriftCase(
    EncoderCase("drift", 16, forward=40, backward=80, layer_forward=15, layer_backward=30, layers=4)
)


class DriftRun(NamedTuple):
    """The report of one rank: the changes of the plan, and steps in turn with the old plan, ns."""

    changes: tuple[PlanChange, ...]
    kept_ns: list[int]
    followed_ns: list[int]


class DriftRank:
    """One rank of a job with drift."""

    def __init__(self, rank: int, mesh: DeviceMesh | None = None) -> None:
        self._mesh = mesh or init_device_mesh("cpu", (RANKS,), mesh_dim_names=("pp",))
        self._rank = rank

    def measure(self, drift: DriftCase, rounds: int) -> DriftRun:
        """Run until the plan has had its time to change, then both plans in turn."""
        case, first = drift.case, drift.program(0)
        settings = Replan(partial(plan_case, case), drift.profile)
        made = partial(sleeping_pipe, self._mesh, self._rank, case, first)
        kept, stages = made()
        followed, others = made(settings)
        for step in range(drift.start + WITHIN):
            if step == drift.start and self._rank == drift.slow:
                for stage in (*stages.values(), *others.values()):
                    stage.slow_down(drift.factor)
            followed.step(sleeping_step(case))
        found: tuple[list[int], list[int]] = ([], [])
        for _ in range(rounds + 1):
            for pipe, into in zip((kept, followed), found, strict=True):
                pipe.step(sleeping_step(case))
                into.append(pipe.timeline().makespan_ns)
        changes = followed.plan_changes()
        for pipe in (kept, followed):
            pipe.close()
        return DriftRun(changes, found[0][1:], found[1][1:])


def measure_drift(drift: DriftCase, rounds: int) -> Report:
    """Return what planning again has won, of what the planner can win."""
    expected = drift.simulated_ns  # plans here, so that compiling is one process' work
    with RankProcesses(RANKS, DriftRank) as ranks:
        runs = ranks.call("measure", drift, rounds)
    return verdict(drift, expected, runs)


def verdict(drift: DriftCase, simulated_ns: tuple[int, int], runs: list[DriftRun]) -> Report:
    """Return the report of all ranks' runs.

    What was won is the median over rounds of the difference of both plans' steps.
    """
    first = runs[0]
    can_ns = simulated_ns[0] - simulated_ns[1]
    pairs = zip(first.kept_ns, first.followed_ns, strict=True)
    won_ns = statistics.median(kept - followed for kept, followed in pairs)
    steps = [change.step for change in first.changes]
    once = len(steps) == 1 and drift.start < steps[0] <= drift.start + WITHIN
    same = all([(c.step, c.digest) for c in run.changes]
               == [(c.step, c.digest) for c in first.changes] for run in runs)  # fmt: skip
    share = won_ns / can_ns
    return {
        "start": drift.start,
        "changed_at": steps,
        "same_on_all_ranks": same,
        "simulated_ms": [round(ns / _MS, 1) for ns in simulated_ns],
        "measured_ms": [
            round(statistics.median(ns) / _MS, 1) for ns in (first.kept_ns, first.followed_ns)
        ],
        "can_be_won_ms": round(can_ns / _MS, 1),
        "won_ms": round(won_ns / _MS, 1),
        "share_won": round(share, 3),
        "agrees": once and same and share >= SHARE,
    }
