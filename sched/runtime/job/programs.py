"""The programs of a pipeline, one for each number of microbatches, and the fields it needs.

In units there is one program for each replica of the language model, and encoders and generator
work for all of them; on a mesh there is one replica. Parts see all replicas' programs as one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from ...checking import check
from ...ir.program import Program
from ...simulation.timeline import Slot
from ...transforms.generator_passes import drop_generator_gradient
from ...transforms.training import forward_only, with_reductions, with_whole_last_backward
from ..compiled import collectives
from ..encoders.part import EncoderPart, RankEncoders, refuse_without_backward, trained_program
from ..encoders.travelling import RankImages
from ..execution.waiting import Pipelines
from ..links.process_groups import Channel, list_channels
from ..parts import ELSEWHERE, ModelPart, Reading, StepData, Steps, list_steps
from ..settings import StageOptions, StepLoss
from ..stage.agreement import ModelFacts
from ..stage.calling import Merging, StateCapture
from ..stage.generator import GeneratorPart, RankGenerator
from ..stage.modules import Stages
from ..units.lists import compile_units, joined
from ..units.place import UnitPlace
from ..units.plan import UnitPlan, plan_on_mesh
from ..vocabulary.step import VocabularyPart


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A program for one number of microbatches, compiled for all ranks, and this rank's parts."""

    program: Program
    pipelines: Pipelines
    parts: Mapping[str, ModelPart]
    encoder: EncoderPart
    generator: GeneratorPart | None
    # The precision of what barriers bring, where it is not that of hidden states.
    precision: Mapping[str, torch.dtype]
    # What encoder passes inside others took last (see `offer`), by kind. None where
    # encoders have collectives, which lanes would enter in different orders.
    took: dict[str, int] | None


@dataclass(slots=True)
class Programs:
    """The programs of one rank.

    `plan_of`: the plan of a number of microbatches of each replica. `placement`: the rank of each
    stage. `channels`: the connected ones, which are those of the first program. `bases`:
    those of one replica so far, as they were made.
    """

    plan_of: Callable[[int], UnitPlan]
    place: UnitPlace
    modules: Mapping[int, nn.Module]
    options: StageOptions
    loss: StepLoss
    vocabulary: VocabularyPart | None
    encoders: RankEncoders
    generator: RankGenerator
    merging: Merging | None
    capture: StateCapture | None
    facts: ModelFacts
    placement: Sequence[int]
    images: RankImages
    channels: Sequence[Channel] = ()
    bases: dict[int, Program] = field(default_factory=dict)
    _known: dict[tuple[int, bool], CompiledProgram] = field(default_factory=dict)

    @property
    def replicas(self) -> range:
        """Return the replicas that this rank works for, of those in the programs."""
        return self.place.units.replicas(self.place.rank)

    def compiled(self, microbatches: int, training: bool = True) -> CompiledProgram:
        """Return the program of a number of microbatches, made and checked once.

        Without `training` it has the forward passes alone. Raises ValueError if it is for another
        number, or has messages between other ranks than the schedule's first program.
        """
        key = microbatches, training
        if key not in self._known:
            self._known[key] = self._compile(microbatches, training)
        return self._known[key]

    def count_microbatches(self, step: Steps) -> int:
        """Return the number of microbatches of each replica's step.

        Raises ValueError if the steps are not those of the replicas that this rank works for.
        """
        steps = list_steps(step)
        replicas = self.replicas
        counts = {len(replica_step.microbatches) for replica_step in steps}
        if len(steps) != len(replicas) or len(counts) != 1:
            raise ValueError(
                f"this rank got {len(steps)} steps of {sorted(counts)} microbatches; give it the "
                f"steps of {len(replicas)} data-parallel ranks ({', '.join(map(str, replicas))}), "
                "with as many microbatches each"
            )
        return counts.pop()

    def read_step(
        self, compiled: CompiledProgram, reading: Reading, step: Steps, training: bool
    ) -> StepData:
        """Return a step's data for the parts, with the sizes of all that ranks exchange."""
        count, gradient = self.count_microbatches(step), self.input_gradient(training)
        microbatches = [ELSEWHERE] * (count * self.place.units.backbone.dp)
        infos: list[object] = [None] * len(microbatches)
        for replica, replica_step in zip(self.replicas, list_steps(step), strict=True):
            first = replica * count
            needed = [self.needs(compiled, first + number) for number in range(count)]
            read = reading.read(replica_step, gradient, training, needed)
            microbatches[first : first + count] = read.microbatches
            infos[first : first + count] = replica_step.infos
        edges = compiled.encoder.edge_specs(infos)
        if compiled.generator is not None:
            edges |= compiled.generator.edge_specs(infos)
        return StepData(tuple(microbatches), gradient, edges, compiled.precision, training)

    def input_gradient(self, training: bool) -> tuple[bool, ...]:
        """Return where gradients of inputs are wanted; without training, nowhere."""
        return tuple(is_needed and training for is_needed in self.facts.input_gradient)

    def find_needs(self, info: Any) -> frozenset[str]:
        """Return the fields of a microbatch that this rank needs, by its info."""
        # Its number in the program is one over all replicas.
        first = info.rank * info.microbatches if self.place.units.backbone.dp > 1 else 0
        return self.needs(self.compiled(info.microbatches), first + info.microbatch)

    def needs(self, compiled: CompiledProgram, number: int) -> frozenset[str]:
        """Return the fields of a microbatch of the program that this rank needs."""
        generates = compiled.generator is not None and number in compiled.generator.generated
        encodes = number in compiled.encoder.encoded
        return self.list_fields(self.place.seat, encodes=encodes, generates=generates)

    def list_fields(
        self, rank: int, *, encodes: bool = True, generates: bool = True
    ) -> frozenset[str]:
        """Return the fields of a microbatch that a rank of the program needs.

        `encodes`, `generates`: False for a microbatch that another rank does this of.
        """
        names = self.generator.fields(rank, self.placement[-1], generates=generates)
        if encodes:
            names |= self.encoders.fields(rank)
        if rank not in self.placement:
            return frozenset(names)
        options, vocabulary = self.options, self.vocabulary
        names |= set(options.extras)
        if rank == self.placement[0]:
            names |= self.images.fields()
            if not (vocabulary and vocabulary.shard.embedding):
                names |= set(options.inputs)
        if rank == self.placement[-1] and self.loss.function is not None:
            names |= set(self.loss.labels)
        if vocabulary is not None:
            names |= set(vocabulary.fields.values())
        return frozenset(names)

    def own_rows(self, rows: Sequence[Sequence[Slot]], count: int) -> list[list[Slot]]:
        """Return the measured passes of this rank's replica by seat, as its program has them.

        `rows`: of all ranks of the job. `count`: the microbatches of a replica's step.
        """
        units, replica = self.place.units, self.replicas[0]
        first = replica * count
        return [
            [
                slot._replace(what=replace(slot.what, microbatch=slot.what.microbatch - first))
                for slot in rows[units.rank(replica, seat)]
                if first <= slot.what.microbatch < first + count
            ]
            for seat in range(units.seats)
        ]

    def trained(self, program: Program) -> Program:
        """Return a program without the encoders' and generator's backward that nothing needs."""
        program = trained_program(program, self.encoders.placed(program), self.facts.lowest)
        # without anything trained before the generator
        return program if self.facts.input_gradient[-1] else drop_generator_gradient(program)

    def install(self, programs: Mapping[int, Program], make: Callable[[int], Program]) -> None:
        """Run other programs from the next step on; `make` makes those of other sizes.

        Raises ValueError, and changes nothing, if one of them does not fit the connected ranks.
        """
        before = self.plan_of, self.bases, self._known
        self.plan_of = lambda count: plan_on_mesh(programs.get(count) or make(count))
        self.bases, self._known = {}, {}
        try:
            for count in programs:
                self.compiled(count)
        except ValueError:
            self.plan_of, self.bases, self._known = before
            raise

    def _compile(self, microbatches: int, training: bool) -> CompiledProgram:
        program, pipelines = self._lists(microbatches, training)
        self._check_channels(list_channels(pipelines.lists), microbatches, program.name)
        seat, units, options = self.place.seat, self.place.units, self.options
        encoder = EncoderPart(program, self.encoders, options, units.backbone.dp)
        if training:
            refuse_without_backward(encoder)
        first = self.replicas[0] * microbatches
        stages = Stages(
            program,
            self.modules,
            options,
            self.loss,
            encoder.joints,
            self.merging,
            self.capture,
            microbatches=range(first, first + microbatches),
            travelling_name=self.images.name,
        )
        spec, generator = self.generator.spec, None
        if spec is not None:
            generator = GeneratorPart(program, seat, spec, options)
        rank_parts = (stages, self.vocabulary, encoder, generator)
        parts = {kind: part for part in rank_parts if part is not None for kind in part.kinds}
        took: dict[str, int] | None = None if self.encoders.divided() else {}
        precision = self._precision(program)
        return CompiledProgram(program, pipelines, parts, encoder, generator, precision, took)

    def _lists(self, microbatches: int, training: bool) -> tuple[Program, Pipelines]:
        """Return what all replicas' programs have, checked, and every rank's operations."""
        plan, place = self.plan_of(microbatches), self.place
        programs = [self._fitted(program, microbatches, training) for program in plan.programs]
        self.bases[microbatches] = plan.base
        if training and place.replicas is not None:
            programs = [with_reductions(program) for program in programs]
        gradient, replica = self.input_gradient(training), self.replicas[0]
        lists = compile_units(programs, place.units, plan.order, gradient)
        joined_program = joined(programs)
        entered = {
            name: collective._replace(
                communicator=place.communicator_name(collective.communicator, replica)
            )
            for name, collective in collectives(joined_program).items()
        }
        return joined_program, Pipelines(lists, entered, place.peers())

    def _fitted(self, program: Program, microbatches: int, training: bool) -> Program:
        """Check a program, and return its forward passes, or for training all that are wanted."""
        if program.microbatches != microbatches:
            raise ValueError(
                f"the step has {microbatches} microbatches, the schedule {program.name!r} "
                f"{program.microbatches}; give steps of as many, or a schedule for this number"
            )
        check(program)
        program = self.trained(program)
        if not training:
            return forward_only(program)
        # as FSDP2's stages need it
        split = self.options.split
        return with_whole_last_backward(program, self.facts.sharded) if split else program

    def _check_channels(self, channels: Sequence[Channel], microbatches: int, name: str) -> None:
        """Raise ValueError if a program needs connections that were not made at the start."""
        self.channels = self.channels or channels
        # Connections are made at the start, by all ranks together; a step cannot make more.
        if new := set(channels) - set(self.channels):
            pairs = ", ".join(f"{source} to {target}" for source, target in sorted(new))
            raise ValueError(
                f"with {microbatches} microbatches the schedule {name!r} sends from ranks "
                f"{pairs}, as it did not when the pipeline was made; make the pipeline with a "
                "schedule that always uses the same channels"
            )

    def _precision(self, program: Program) -> dict[str, torch.dtype]:
        """Return the precision of what vocabulary layers get: autocast's, in which they compute."""
        if self.options.autocast is None:
            return {}
        sent = (b for b in program.barriers if (b.source, b.after) == ("last", "F"))
        return {barrier.name: self.options.autocast for barrier in sent}
