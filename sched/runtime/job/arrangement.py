"""Arrange a job's parts: encoders in the pipeline's bubbles, or units on ranks of their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from ...ir.program import Program
from ...transforms.generator_passes import with_generator, without_last_stage
from ..encoders.part import RankEncoders, rank_encoders
from ..encoders.placement import EncoderSpec
from ..links.place import MeshPlace
from ..stage.agreement import ModelFacts, RankFacts, agree
from ..stage.generator import GeneratorSpec
from ..units.layout import Units
from ..units.lists import joined
from ..units.place import UnitPlace, agree_units, place_units
from ..units.plan import UnitPlan, plan_units
from .programs import Programs, UnitPrograms
from .start import generator_of, place_in, start_deadline

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


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A pipeline whose ranks run all passes, encoders' in its bubbles, or units on their own ranks.

    `make`: the program of a number of microbatches, of which parts, fields and connections follow.
    `here`: this process' place among units, if there are any. `plan_of`: the plan of a number of
    microbatches of each replica of their language model.
    """

    place: MeshPlace
    make: Callable[[int], Program]
    here: UnitPlace | None = None
    plan_of: Callable[[int], UnitPlan] | None = None

    @property
    def first_program(self) -> Program:
        """Return the first program: stages and channels do not depend on how many microbatches."""
        count = _PROBE * self.place.ranks
        if self.here is not None:  # every encoder rank has something to do
            count *= max(unit.dp for unit in self.here.units.sizes[1:])
        return self.make(count)

    @property
    def first_count(self) -> int:
        """Return the number of microbatches that each replica has in the first program."""
        replicas = 1 if self.here is None else self.here.units.backbone.dp
        return self.first_program.microbatches // replicas

    def encoders(self, specs: Sequence[EncoderSpec]) -> RankEncoders:
        """Return this rank's encoders. Raises ValueError as `rank_encoders` does."""
        units = None if self.here is None else self.here.units
        size = units.encoder if units is not None and units.spread else None
        parts = 0 if size is None else size.dp
        return rank_encoders(specs, self.first_program, self.place.seat, parts)

    def agree(self, own: RankFacts, deadline_s: float) -> ModelFacts:
        """Return what all ranks' modules say of the model together; all ranks call this."""
        program, limit_s = self.first_program, start_deadline(deadline_s)
        if self.here is not None:
            return agree_units(own, program, self.here, limit_s)
        return agree(own, program, self.place, limit_s)

    def programs(self, **given: Any) -> Programs:
        """Return the programs; `given`: the fields of Programs that are not known here."""
        given |= {"make": self.make, "rank": self.place.seat}
        if self.here is None or self.plan_of is None:
            return Programs(**given)
        units = self.here.units
        given |= {"replicas": units.replicas(self.here.rank), "in_all": units.backbone.dp}
        return UnitPrograms(place=self.here, plan_of=self.plan_of, **given)


def arrange(
    where: DeviceMesh | Units,
    schedule: str | Callable[[int, int], Program],
    options: Mapping[str, Any],
    encoders: Sequence[EncoderSpec],
    generator: GeneratorSpec | None,
    deadline_s: float,
) -> Arrangement:
    """Return the arrangement on a mesh or on units; all processes of the job call this together.

    Raises ValueError and PeerLostError as `place_in` and `place_units` do.
    """
    if not isinstance(where, Units):
        place = place_in(where, start_deadline(deadline_s))
        made = generator_of(schedule, place.ranks, options)
        return Arrangement(place, cache(_headed(made) if generator else made))
    _refuse_other_units(where, encoders, generator)
    here = place_units(where, start_deadline(deadline_s))
    made = _of_replicas(where, schedule, options, generator)
    layers = [len(spec.modules) for spec in encoders]
    plan_of = cache(lambda count: plan_units(made(count), where, layers))
    return Arrangement(here, cache(lambda count: joined(plan_of(count).programs)), here, plan_of)


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
    if bool(encoders) != (units.encoder is not None):
        raise ValueError(
            "an encoder's unit and encoders= go together: give both, or a mesh to run encoders in "
            "the language model's bubbles"
        )
    if units.generator is not None and generator is None:
        raise ValueError("the units have a generator's; give generator= what runs there")
