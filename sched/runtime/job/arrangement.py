"""Arrange a job's parts: encoders in the pipeline's bubbles, or units on ranks of their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from ...ir.program import Program
from ...transforms.generator_passes import with_generator, without_last_stage
from ..encoders.placement import EncoderSpec
from ..stage.generator import GeneratorSpec
from ..units.layout import Units
from ..units.place import Place, place_in, place_units
from ..units.plan import UnitPlan, plan_on_mesh, plan_units
from .start import generator_of, start_deadline

# Microbatches of the first program, for each rank: every schedule has one for as many.
_PROBE = 2


@dataclass(frozen=True, slots=True)
class ResumedSchedule:
    """A schedule that goes on with programs that were saved, by ranks and microbatches.

    `schedule`, `options`: what makes all others. `in_units`: whether the saved ones are for units
    alone: a pipeline with encoders in its bubbles has others.
    """

    saved: Mapping[tuple[int, int], Program]
    schedule: str | Callable[[int, int], Program]
    options: Mapping[str, Any]
    in_units: bool = False

    def __call__(self, ranks: int, microbatches: int) -> Program:
        """Return the program of a number of microbatches, for a mesh."""
        if not self.in_units and (found := self.saved.get((ranks, microbatches))):
            return found
        return generator_of(self.schedule, ranks, self.options)(microbatches)


PlanOf = Callable[[int], UnitPlan]


def arrange(
    where: DeviceMesh | Units,
    schedule: str | Callable[[int, int], Program],
    options: Mapping[str, Any],
    encoders: Sequence[EncoderSpec],
    generator: GeneratorSpec | None,
    deadline_s: float,
) -> tuple[Place, PlanOf]:
    """Return this process' place, and the plan of a number of microbatches of each replica.

    All processes of the job call this together. Raises ValueError and PeerLostError as `place_in`
    and `place_units` do.
    """
    if not isinstance(where, Units):
        place = place_in(where, start_deadline(deadline_s))
        made = generator_of(schedule, place.ranks, options)
        made = _headed(made) if generator else made
        return place, cache(lambda count: plan_on_mesh(made(count)))
    _refuse_other_units(where, encoders, generator)
    place = place_units(where, start_deadline(deadline_s))
    base = _of_replicas(where, schedule, options, generator)
    layers = [len(spec.modules) for spec in encoders]
    return place, cache(lambda count: plan_units(base(count), where, layers))


def first_count(units: Units) -> int:
    """Return the microbatches of each replica in the first program, in which every rank has some.

    Stages and channels do not depend on how many there are.
    """
    return _PROBE * units.backbone.pp * max((unit.dp for unit in units.sizes[1:]), default=1)


def _of_replicas(
    units: Units,
    schedule: str | Callable[[int, int], Program],
    options: Mapping[str, Any],
    generator: GeneratorSpec | None,
) -> Callable[[int], Program]:
    """Return the function that makes the program of one replica of the language model."""
    ranks = units.backbone.pp
    if isinstance(schedule, ResumedSchedule):
        again = _of_replicas(units, schedule.schedule, schedule.options, generator)
        saved = schedule.saved if schedule.in_units else {}
        return lambda count: saved.get((ranks, count)) or again(count)
    made = generator_of(schedule, ranks, options)
    if generator and units.generator is None:
        return _headed(made)
    if generator and isinstance(schedule, str):
        return _ahead(made, generator_of(schedule, ranks + 1, options))
    return made


def _headed(made: Callable[[int], Program]) -> Callable[[int], Program]:
    """Return programs with a generator on the last stage's rank, if they have none."""
    return lambda microbatches: with_generator(made(microbatches))


def _ahead(
    made: Callable[[int], Program], longer: Callable[[int], Program]
) -> Callable[[int], Program]:
    """Return programs whose last stage goes on while a generator has its microbatch.

    `longer`: programs of one more rank, whose place the generator takes. Where stages are in
    another order than ranks, the last stage waits for the generator.
    """

    def make(microbatches: int) -> Program:
        own = made(microbatches)
        if own.placement != tuple(range(len(own.ranks))) or own.barriers:
            return own
        return without_last_stage(longer(microbatches)) or own

    return make


def _refuse_other_units(
    units: Units, encoders: Sequence[EncoderSpec], generator: GeneratorSpec | None
) -> None:
    """Raise ValueError for units without something to run, and encoders without a unit."""
    if not units.beside:
        raise ValueError("the backbone is the only unit; give encoder=, generator= or a mesh")
    if bool(encoders) != (units.encoder is not None):
        raise ValueError(
            "an encoder's unit and encoders= go together: give both, or a mesh to run encoders in "
            "the language model's bubbles"
        )
    if units.generator is not None and generator is None:
        raise ValueError("the units have a generator's; give generator= what runs there")
