"""Run training steps of a model that is cut into stages, by any schedule that `check` accepts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ..ir.passes import Pass
from ..ir.program import Program
from ..simulation.measured import measured_timeline
from ..simulation.timeline import Slot, Timeline
from .agreement import ModelFacts, agree, facts_of
from .compiled import Pipelines
from .encoders import EncoderLayers, entry_ranks
from .execution import Board, Walker, drive, explain, walk
from .gradients import Reduction, clip_gradients, refuse_wrapped
from .links import Groups, ProcessGroupLinks, channels_of, wait_for
from .parts import ModelPart, StepData
from .programs import CompiledProgram, Programs
from .stage import LossFunction, Running, StageOptions
from .start import (
    compile_all,
    encoder_part,
    generator_of,
    meet,
    place_in,
    tokens_by,
    trained_program,
    vocabulary_part,
)
from .steps import WEIGHTS, Reading, StepOfMicrobatches
from .vocabulary import VocabParallel


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gives: the loss of the global batch, the same on every rank, without a graph."""

    step: int
    loss: Tensor


class Pipeline:
    """A model whose stages are on the ranks of a mesh, and the schedule that trains it.

    `mesh`: with a dimension "pp", and "dp" if the stages have replicas. `schedule`: a registered
    name, with `options` of its generator, or a function of (ranks, microbatches) that returns a
    Program. `stages`: this rank's modules by the number of the stage. The first stage's is called
    with the fields `inputs`, the others with the hidden states; every one gets the fields `extras`
    by keyword, and returns one tensor. `loss`: called with the last stage's output and the fields
    `labels`, returns the sum over the microbatch; with `vocabulary`, which has a loss of its own,
    it is left out. `encoder`: this rank's layers of an encoder, for a schedule with encoder passes.
    `weigh`: "token", "sample", or a function of a microbatch's info: what its loss
    counts. `hidden`: the last dimension of the hidden states, whose others are the microbatch's
    tokens, or a function from its info to their whole shape; `dtype`: their precision.
    `deadline_s`: how long a rank waits for another one. `running`: the fields of StageOptions
    (`inputs`, `extras`, `labels`, `recompute`, `autocast`, `split`).

    Raises ValueError for stages, schedules and settings that do not fit together.
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        *,
        schedule: str | Callable[[int, int], Program],
        stages: Mapping[int, nn.Module],
        hidden: int | Callable[[Any], tuple[int, ...]],
        loss: LossFunction | None = None,
        vocabulary: VocabParallel | None = None,
        encoder: EncoderLayers | None = None,
        weigh: str | Callable[[Any], float] = "token",
        dtype: torch.dtype = torch.float32,
        deadline_s: float = 300.0,
        options: Mapping[str, Any] | None = None,
        **running: Unpack[Running],
    ) -> None:
        for stage, module in stages.items():
            refuse_wrapped(stage, module)
        self.deadline_s = deadline_s
        self._place = place_in(mesh)
        self._make = generator_of(schedule, self._place.ranks, options or {})
        # Which stages and channels there are does not depend on the number of microbatches.
        probe = self._make(4 * self._place.ranks)
        self._modules, self._encoder = dict(stages), encoder
        self._options = StageOptions(loss=loss, **running)
        self._vocabulary = vocabulary_part(probe, vocabulary, loss, self._place, self._options)
        self._facts = self._agree(probe)
        self._reading = Reading(
            hidden if callable(hidden) else tokens_by(hidden),
            dtype,
            WEIGHTS[weigh] if isinstance(weigh, str) else weigh,
            self.fields(self._place.rank),
            self._place.device,
        )
        self._groups, self._board, self._programs = self._connect(probe)
        self._step = 0
        self._measured: list[Slot] = []
        self._name = ""
        self._pipelines = Pipelines((), {})
        self._placement = probe.placement

    @property
    def rank(self) -> int:
        """Return this process' rank in its pipeline."""
        return self._place.rank

    def modules(self) -> tuple[nn.Module, ...]:
        """Return what this rank trains: stages, its shard of the vocabulary, encoder layers."""
        shard = () if self._vocabulary is None else tuple(self._vocabulary.modules())
        return (*self._modules.values(), *shard, *self._encoder_layers())

    def fields(self, rank: int) -> frozenset[str]:
        """Return the fields of a microbatch that a pipeline rank needs."""
        wanted = set(self._options.extras)
        probe = self._make(4 * self._place.ranks)
        ends = probe.placement
        entry = not (self._vocabulary and self._vocabulary.shard.embedding)
        if rank == ends[0] and entry:
            wanted |= set(self._options.inputs)
        if rank == ends[-1] and self._options.loss is not None:
            wanted |= set(self._options.labels)
        if self._vocabulary is not None:
            wanted |= set(self._vocabulary.fields.values())
        if self._encoder is not None and rank in entry_ranks(probe):
            wanted |= set(self._encoder.inputs)
        return frozenset(wanted)

    def step(self, step: StepOfMicrobatches) -> StepResult:
        """Run forward and backward of a step; gradients are summed over replicas, in `.grad`.

        The optimizer is the caller's, and so is zeroing gradients. Raises PipelineStalledError if a
        peer is dead, stopped or hangs.
        """
        compiled = self._programs.of(len(step.microbatches))
        data = compiled.sized(self._reading.read(step, self._facts.input_gradient), step.infos)
        parts = list(dict.fromkeys(compiled.parts.values()))
        for part in parts:
            part.begin(data)
        reduction = Reduction(self._place.replicas)
        walker = Walker(
            compiled.parts,
            ProcessGroupLinks(self._groups),
            compiled.pipelines.collectives,
            reduce=lambda what: self._reduce(reduction, what),
            waits=self._board.begin_step(self._step),
        )
        self._run(compiled, data, walker)
        loss = self._finish(parts, reduction)
        self._board.end_step()
        self._measured, self._name = walker.measured, compiled.program.name
        self._step += 1
        return StepResult(self._step - 1, loss)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients to a norm of at most `max_norm` over the whole model.

        Returns the norm before. All ranks call it after `step`. Raises PipelineStalledError as
        `step` does.
        """
        parameters = [p for module in self.modules() for p in module.parameters()]
        sharding = [self._place.replicas] if self._facts.sharded and self._place.replicas else []
        with self._explained():
            return clip_gradients(
                parameters,
                max_norm,
                pipeline=self._place.group,
                sharding=sharding,
                deadline_s=self.deadline_s,
            )

    def timeline(self) -> Timeline:
        """Return the timeline of the last step, on every rank; all ranks of the pipeline call it.

        Times are of the hosts' monotonic clocks, so ranks of one pipeline must share a host. On
        CUDA they are the times at which passes were launched.
        """
        found: list[list[Slot] | None] = [None] * self._place.ranks
        dist.all_gather_object(found, self._measured, group=self._place.group)
        rows = [row or [] for row in found]
        return measured_timeline(self._name, self._placement, rows)

    def close(self) -> None:
        """Stop publishing where this rank stands, and give up the process groups."""
        self._board.close()
        self._groups.close()

    def _agree(self, probe: Program) -> ModelFacts:
        """Return what all ranks' modules say of the model together."""
        embedding = self._vocabulary.shard.embedding if self._vocabulary else None
        facts = facts_of(self._modules, embedding, self._encoder_layers())
        return agree(facts, probe, self._place.group, self._place.replicas)

    def _connect(self, probe: Program) -> tuple[Groups, Board, Programs]:
        """Compare the encoder's layers with the schedule, and connect to the other ranks."""
        probe, place = trained_program(probe, self._facts), self._place
        encoder_part(probe, self._encoder, place.rank, self._options)
        channels = channels_of(compile_all(probe, self._facts))
        groups, board = meet(probe, channels, place, self.deadline_s)
        programs = Programs(
            self._make,
            place.rank,
            self._modules,
            self._options,
            self._vocabulary,
            self._encoder,
            self._facts,
            channels,
        )
        return groups, board, programs

    def _encoder_layers(self) -> tuple[nn.Module, ...]:
        return () if self._encoder is None else tuple(self._encoder.layers.values())

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say who does not come, where sums over ranks do not come after the passes of a step."""
        try:
            yield
        except RuntimeError as error:
            if not self._pipelines.lists:  # no step was run, so nobody waits in one
                raise
            raise explain(error, self._board, self._pipelines, self._place.rank) from error

    def _run(self, compiled: CompiledProgram, data: StepData, walker: Walker) -> None:
        rank, self._pipelines = self._place.rank, compiled.pipelines
        running = walk(compiled.pipelines.lists[rank], data, walker)
        drive(running, self.deadline_s, self._board, compiled.pipelines, rank)

    def _reduce(self, reduction: Reduction, what: Pass) -> None:
        if what.stage not in self._facts.sharded:
            reduction.start([self._modules[what.stage]])

    def _finish(self, parts: Sequence[ModelPart], reduction: Reduction) -> Tensor:
        """End the step of all parts, and return the loss of all ranks."""
        if self._vocabulary is not None:
            reduction.start(self._vocabulary.modules())
        reduction.start(self._encoder_layers())
        losses = [found for part in parts if (found := part.finish()) is not None]
        total = torch.zeros((), device=self._place.device)
        for loss in losses:
            total = total + loss.float()
        with self._explained():
            reduction.finish(self.deadline_s)
            for group in (self._place.group, self._place.replicas):
                if group is not None and group.size() > 1:
                    work = dist.all_reduce(total, group=group, async_op=True)
                    wait_for(work, total, self.deadline_s)
        return total
