"""The programs that a pipeline runs: one for each number of microbatches, checked and compiled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from ..checking.checker import check
from ..ir.program import Program
from .compiled import (
    Pipelines,
    Value,
    collectives,
    forward_only,
    with_reductions,
    with_whole_last_backward,
)
from .encoders import EncoderPart, RankEncoders, refuse_without_backward, trained_program
from .links import Channel, channels_of
from .parts import ModelPart, StepData, TensorSpec
from .stage import Merging, StageOptions, Stages
from .stage.agreement import ModelFacts, without_training
from .start import compile_all
from .vocabulary import VocabularyPart


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A program for one number of microbatches, compiled for all ranks, and this rank's parts."""

    program: Program
    pipelines: Pipelines
    parts: Mapping[str, ModelPart]
    # What the program's edges carry in a step, from the infos of its microbatches.
    edges: Callable[[Sequence[Any]], Mapping[Value, TensorSpec]]
    # The precision of what barriers bring, where it is not that of hidden states.
    precision: Mapping[str, torch.dtype]

    def sized(self, data: StepData, infos: Sequence[Any]) -> StepData:
        """Return a step's data with the sizes of all that this program's ranks exchange."""
        return replace(data, edges=self.edges(infos), precision=self.precision)


@dataclass(slots=True)
class Programs:
    """The programs of one rank.

    `make`: the program of a number of microbatches. `channels`: the connected ones, which are those
    of the first program.
    """

    make: Callable[[int], Program]
    rank: int
    modules: Mapping[int, nn.Module]
    options: StageOptions
    vocabulary: VocabularyPart | None
    encoders: RankEncoders
    merging: Merging | None
    facts: ModelFacts
    channels: Sequence[Channel] = ()
    _known: dict[tuple[int, bool], CompiledProgram] = field(default_factory=dict)

    def of(self, microbatches: int, training: bool = True) -> CompiledProgram:
        """Return the program of a number of microbatches, made and checked once.

        Without `training` it has the forward passes alone.
        Raises ValueError if it is for another number, or has messages between ranks that the
        schedule's other programs have none between.
        """
        key = microbatches, training
        if key not in self._known:
            self._known[key] = self._compile(microbatches, training)
        return self._known[key]

    def _compile(self, microbatches: int, training: bool) -> CompiledProgram:
        program = self.make(microbatches)
        if program.microbatches != microbatches:
            raise ValueError(
                f"the step has {microbatches} microbatches, the schedule {program.name!r} "
                f"{program.microbatches}; give steps of as many, or a schedule for this number"
            )
        check(program)
        facts = self.facts if training else without_training(self.facts)
        placement = self.encoders.placed(program)
        program = trained_program(program, placement, self.facts.lowest)
        if training:
            if self.options.split:
                program = with_whole_last_backward(program, facts.sharded)
            program = with_reductions(program)
        else:
            program = forward_only(program)
        lists = compile_all(program, facts)
        found = channels_of(lists)
        self.channels = self.channels if self._known else found
        # Connections are made at the start, by all ranks together; a step cannot make more.
        if new := set(found) - set(self.channels):
            pairs = ", ".join(f"{source} to {target}" for source, target in sorted(new))
            raise ValueError(
                f"with {microbatches} microbatches the schedule {program.name!r} sends from ranks "
                f"{pairs}, as it did not when the pipeline was made; make the pipeline with a "
                "schedule that always uses the same channels"
            )
        pipelines = Pipelines(lists, collectives(program))
        specs, calling = self.encoders.specs, self.options.calling
        encoder = EncoderPart(program, self.rank, specs, placement, calling)
        if training:
            refuse_without_backward(encoder)
        stages = Stages(program, self.modules, self.options, encoder.joints, self.merging)
        own = (stages, self.vocabulary, encoder)
        parts = {kind: part for part in own if part is not None for kind in part.kinds}
        precision = self._precision(program)
        return CompiledProgram(program, pipelines, parts, encoder.edge_specs, precision)

    def _precision(self, program: Program) -> dict[str, torch.dtype]:
        """Return the precision of the last stage's output for the vocabulary layers.

        Under autocast they compute in lower precision, so nothing is lost if it is sent in that.
        """
        if self.options.autocast is None:
            return {}
        sent = (b for b in program.barriers if (b.source, b.after) == ("last", "F"))
        return {barrier.name: self.options.autocast for barrier in sent}
