"""Follow what steps take, on all ranks together, and run the plan that is made of it.

After every step all ranks add up one row of whole numbers. So each knows the same, and decides the
same by `sched.replanning`, which has no clock. One process plans, since a planner is the user's
function, and all others take its programs as text.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...ir.program import Program, parse_program
from ...replanning.decision import (
    Decision,
    MakeProgram,
    PlanChange,
    PlanState,
    Replan,
    digest_programs,
    dump_state,
    first_state,
    load_state,
    observe,
    reordered,
    settled,
    step_ns,
    taken,
)
from ...replanning.observation import Observation, expected_step, nearby, step_keys
from ...simulation.cost_profile import CostProfile, dump_profile
from ...simulation.costs import Costs
from ...simulation.timeline import Slot
from ..links.meeting import gather_objects
from ..links.process_groups import add_up
from ..units.place import UnitPlace
from .programs import Programs


@dataclass(slots=True)
class Replanner:
    """A pipeline's plan and what is known of it, on one rank."""

    settings: Replan
    programs: Programs
    place: UnitPlace
    deadline_s: float
    state: PlanState = field(init=False)
    # Epoch and step of the loader's that were trained on last.
    trained: tuple[int, int] | None = None
    _written: tuple[CostProfile | None, str] = (None, "")

    def __post_init__(self) -> None:
        """Raise ValueError if the profile does not fit the first program."""
        self.state = first_state(self.settings, self.programs.bases)
        profile, program = self.settings.profile, next(iter(self.programs.bases.values()))
        if (profile.placement, profile.ranks) != (program.placement, len(program.ranks)):
            raise ValueError(
                f"the profile has stages on ranks {profile.placement} of {profile.ranks}, the "
                f"pipeline on {program.placement} of {len(program.ranks)}; give one of this layout"
            )
        keys = step_keys(self.programs.trained(program)).passes
        kinds = {key.lstrip("0123456789") for key in keys}
        if missing := sorted(kinds - set(profile.passes)):
            raise ValueError(
                f"the profile has no times of {', '.join(missing)}, which the schedule "
                f"{program.name!r} runs; add them, rough ones will do"
            )

    def follow(self, count: int, slots: Sequence[Slot], infos: Sequence[Any]) -> None:
        """Observe a step of `count` microbatches, and perhaps change the plan of the next one.

        All ranks call this after each step. Raises RuntimeError if a peer is lost.
        """
        settings = self.settings
        if infos and hasattr(infos[0], "epoch"):
            self.trained = infos[0].epoch, infos[0].step
        if settings.measure is not None:
            slots = settings.measure(self.state.steps, slots)
        program = self.programs.trained(self.programs.bases[count])
        keys, held = step_keys(program), [dict(info.costs) for info in infos]
        first = self.place.rank == 0
        expected_ns = expected_step(program, self.state.profile, held) if first else 0
        row = keys.row(self.place.rank, slots, self.state.profile, held, expected_ns)
        seen = Observation.from_row(keys, self._summed(row))
        self.state, decision = observe(self.state, settings, seen)
        if decision is not None:
            self._plan(program, decision)

    def measured_costs(self) -> tuple[str, tuple[int, int] | None]:
        """Return the cost profile as JSON, and the loader's epoch and step that came last."""
        profile, text = self._written
        if profile is not self.state.profile:
            text = dump_profile(self.state.profile)
            self._written = self.state.profile, text
        return text, self.trained

    def text(self) -> str:
        """Return the state as JSON, the same on every rank."""
        return dump_state(self.state)

    def load(self, text: str) -> None:
        """Go on from a saved state, if the pipeline runs the plan that it speaks of.

        Other layouts have other programs, whose times are measured anew.
        """
        saved = load_state(text)
        profile = self.settings.profile
        if (saved.profile.placement, saved.profile.ranks) != (profile.placement, profile.ranks):
            return
        same = {count: self.programs.plan_of(count).base for count in saved.counts}
        if digest_programs(same) == saved.digest:
            self.state = saved

    def _summed(self, row: Sequence[int]) -> list[int]:
        """Return the sum of all ranks' rows, over the pipeline, its replicas and its lanes."""
        total = torch.tensor(row, dtype=torch.int64, device=self.place.device)
        self.place.add_up(total, self.deadline_s)
        if self.place.lanes is not None:
            add_up(total, [self.place.lanes], self.deadline_s)
        totals: list[int] = total.tolist()
        return totals

    def _plan(self, current: Program, decision: Decision) -> None:
        """Have a plan made, and take it if it is worth it, on all ranks alike."""
        before_ns = step_ns(current, decision.costs)
        self.state = settled(self.state, decision, before_ns)
        make = self.settings.program
        if make is None:
            self.state = reordered(self.state, decision, before_ns)
            return
        programs = self._shared(self._made(make, decision, current.microbatches))
        if not programs:
            return
        after_ns = step_ns(self.programs.trained(programs[current.microbatches]), decision.costs)
        if not self.settings.worth(before_ns, after_ns):
            return
        ranks, costs = len(current.ranks), decision.costs
        try:
            self.programs.install(programs, lambda count: make(ranks, count, costs))
        except ValueError as error:
            self._warn(error)
            return
        digest, measured_ns = digest_programs(programs), decision.measured_ns
        change = PlanChange(self.state.steps, digest, before_ns, after_ns, measured_ns)
        self.state = taken(self.state, change, programs)

    def _made(self, make: MakeProgram, decision: Decision, usual: int) -> dict[int, str]:
        """Return the programs' texts on the process that plans, {} on others and if it fails.

        `usual`: the number of microbatches whose step counts.
        """
        if self.place.rank or self.place.replica or self.place.lane:
            return {}
        ranks = self.place.ranks

        def length(costs: Costs) -> int:
            return step_ns(self.programs.trained(make(ranks, usual, costs)), decision.costs)

        try:
            best = min(nearby(decision.costs), key=length)
            return {count: str(make(ranks, count, best)) for count in sorted(self.programs.bases)}
        except ValueError as error:
            self._warn(error)
            return {}

    def _shared(self, texts: dict[int, str]) -> Mapping[int, Program]:
        """Return the programs of the process that plans: lanes and replicas get them first."""
        for group in (self.place.lanes, self.place.replicas, *self.place.groups):
            texts = gather_objects(texts, group, self.place.device, self.deadline_s)[0]
        return {count: parse_program(text) for count, text in texts.items()}

    def _warn(self, error: ValueError) -> None:
        if self.place.rank == 0 and self.place.replica == 0 and self.place.lane == 0:
            warnings.warn(f"the pipeline keeps its plan: {error}", stacklevel=2)
