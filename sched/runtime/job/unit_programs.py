"""The programs of units: one for each replica of the language model, and all ranks' operations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...ir.program import Program
from ...simulation.timeline import Slot
from ...transforms.training import forward_only, with_whole_last_backward
from ..compiled import collectives
from ..encoders.part import trained_program
from ..execution.waiting import Pipelines
from ..parts import ELSEWHERE, Reading, StepData, Steps, list_steps
from ..stage.agreement import without_training
from ..units.lists import compile_units, joined
from ..units.place import UnitPlace
from ..units.plan import KnownPlans
from .programs import CompiledProgram, Programs


@dataclass(slots=True, kw_only=True)
class UnitPrograms(Programs):
    """The programs of one rank of a unit. `plans`: of a number of microbatches of each replica."""

    place: UnitPlace
    plans: KnownPlans

    def count_microbatches(self, step: Steps) -> int:
        """Return the number of microbatches of each replica's step.

        Raises ValueError if the steps are not those of the replicas that this rank works for.
        """
        steps = list_steps(step)
        replicas = self.place.units.replicas(self.place.rank)
        counts = {len(one.microbatches) for one in steps}
        if len(steps) != len(replicas) or len(counts) != 1:
            raise ValueError(
                f"this rank got {len(steps)} steps of {sorted(counts)} microbatches; give it the "
                f"steps of {len(replicas)} data-parallel ranks ({', '.join(map(str, replicas))}), "
                "with as many microbatches each"
            )
        return counts.pop()

    def read_step(
        self,
        compiled: CompiledProgram,
        reading: Reading,
        step: Steps,
        training: bool,
    ) -> StepData:
        """Return the data of the steps of all replicas that this rank works for."""
        steps = list_steps(step)
        count, units = self.count_microbatches(step), self.place.units
        facts = self.facts if training else without_training(self.facts)
        microbatches = [ELSEWHERE] * (count * units.backbone.dp)
        infos: list[object] = [None] * len(microbatches)
        for replica, one in zip(units.replicas(self.place.rank), steps, strict=True):
            first = replica * count
            read = reading.read(
                one, facts.input_gradient, training, partial(self._needs_after, compiled, first)
            )
            microbatches[first : first + count] = read.microbatches
            infos[first : first + count] = one.infos
        data = StepData(tuple(microbatches), facts.input_gradient, training=training)
        return compiled.with_sizes(data, infos)

    def own_rows(self, rows: Sequence[Sequence[Slot]], count: int) -> list[list[Slot]]:
        """Return the measured passes of this rank's replica by seat, as its program has them.

        `rows`: of all ranks of the job. `count`: the microbatches of a replica's step.
        """
        units, replica = self.place.units, self.place.replica
        first = replica * count
        return [
            [
                slot._replace(what=replace(slot.what, microbatch=slot.what.microbatch - first))
                for slot in rows[units.rank(replica, seat)]
                if first <= slot.what.microbatch < first + count
            ]
            for seat in range(units.seats)
        ]

    def own_microbatches(self, count: int) -> range:
        """Return those of this rank's replica."""
        first = self.place.replica * count
        return range(first, first + count)

    def unit_plans(self) -> str:
        """Return the plans so far as text."""
        return self.plans.text()

    def number(self, info: Any) -> int:
        """Return the number of a microbatch over all replicas."""
        found: int = info.rank * info.microbatches + info.microbatch
        return found

    def _needs_after(self, compiled: CompiledProgram, first: int, number: int) -> frozenset[str]:
        return self.needs(compiled, first + number)

    def _lists(self, microbatches: int, training: bool) -> tuple[Program, Pipelines]:
        """Return what all replicas' programs have, checked, and every rank's operations."""
        facts = self.facts if training else without_training(self.facts)
        plan, placement = self.plans.plan_of(microbatches), self.encoders.placement
        self.made[microbatches] = self.plans.base(microbatches)
        programs = [
            self._wanted(
                trained_program(self._checked(program, microbatches), placement, self.facts.lowest)
            )
            for program in plan.programs
        ]
        if not training:
            programs = [forward_only(program) for program in programs]
        elif self.options.split:
            programs = [with_whole_last_backward(program, facts.sharded) for program in programs]
        units = self.place.units
        lists = compile_units(programs, units, plan.order, facts.input_gradient)
        every = joined(programs)
        replica = self.place.replica
        found = {
            name: one._replace(communicator=self.place.communicator_name(one.communicator, replica))
            for name, one in collectives(every).items()
        }
        return every, Pipelines(lists, found, self.place.peers())
