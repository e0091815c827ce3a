"""Run training steps of a model that is cut into stages, by any schedule that `check` accepts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ..checking.checker import check
from ..ir.passes import Pass
from ..ir.program import Program
from ..simulation.measured import measured_timeline
from ..simulation.timeline import Slot, Timeline
from .agreement import agree, facts_of
from .compiled import Pipelines, collectives, with_reductions, with_whole_last_backward
from .execution import Walker, drive, leave_at_exit, walk
from .gradients import Reduction, clip_gradients, refuse_wrapped
from .links import PeerLostError, ProcessGroupLinks
from .parts import ModelPart, StepData
from .stage import LossFunction, Running, StageOptions, Stages
from .start import (
    compile_all,
    generator_of,
    meet,
    place_in,
    tokens_by,
    vocabulary_part,
)
from .steps import WEIGHTS, Reading, StepOfMicrobatches
from .vocabulary import VocabParallel


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gives: the loss of the global batch, the same on every rank, without a graph."""

    step: int
    loss: Tensor


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A program for one number of microbatches, compiled for all ranks."""

    program: Program
    pipelines: Pipelines
    parts: Mapping[str, ModelPart]


class Pipeline:
    """A model whose stages are on the ranks of a mesh, and the schedule that trains it.

    `mesh`: with a dimension "pp", and "dp" if the stages have replicas. `schedule`: a registered
    name, with `options` of its generator, or a function of (ranks, microbatches) that returns a
    Program. `stages`: this rank's modules by the number of the stage. The first stage's is called
    with the fields `inputs`, the others with the hidden states; every one gets the fields `extras`
    by keyword, and returns one tensor. `loss`: called with the last stage's output and the fields
    `labels`, returns the sum over the microbatch; with `vocabulary`, which has a loss of its own,
    it is left out. `weigh`: "token", "sample", or a function of a microbatch's info: what its loss
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
        self._modules = dict(stages)
        self._options = StageOptions(loss=loss, **running)
        self._vocabulary = vocabulary_part(probe, vocabulary, loss, self._place, self._options)
        embedding = self._vocabulary.shard.embedding if self._vocabulary else None
        self._facts = agree(facts_of(stages, embedding), probe, self._place.group)
        self._reading = Reading(
            hidden if callable(hidden) else tokens_by(hidden),
            dtype,
            WEIGHTS[weigh] if isinstance(weigh, str) else weigh,
            self.fields(self._place.rank),
            self._place.device,
        )
        self._groups, self._board = meet(probe, self._facts, self._place, deadline_s)
        self._cache: dict[int, _Compiled] = {}
        self._step = 0
        self._measured: list[Slot] = []
        self._name = ""
        self._placement = probe.placement

    @property
    def rank(self) -> int:
        """Return this process' rank in its pipeline."""
        return self._place.rank

    def modules(self) -> tuple[nn.Module, ...]:
        """Return what this rank trains: its stages, and its shard of the vocabulary layers."""
        shard = () if self._vocabulary is None else tuple(self._vocabulary.modules())
        return (*self._modules.values(), *shard)

    def fields(self, rank: int) -> frozenset[str]:
        """Return the fields of a microbatch that a pipeline rank needs."""
        wanted = set(self._options.extras)
        ends = self._make(4 * self._place.ranks).placement
        entry = not (self._vocabulary and self._vocabulary.shard.embedding)
        if rank == ends[0] and entry:
            wanted |= set(self._options.inputs)
        if rank == ends[-1] and self._options.loss is not None:
            wanted |= set(self._options.labels)
        if self._vocabulary is not None:
            wanted |= set(self._vocabulary.fields.values())
        return frozenset(wanted)

    def step(self, step: StepOfMicrobatches) -> StepResult:
        """Run forward and backward of a step; gradients are summed over replicas, in `.grad`.

        The optimizer is the caller's, and so is zeroing gradients. Raises PipelineStalledError if a
        peer is dead, stopped or hangs.
        """
        compiled = self._compiled(len(step.microbatches))
        data = self._reading.read(step, self._facts.input_gradient)
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

        Returns the norm before. All ranks call it after `step`.
        """
        parameters = [p for module in self.modules() for p in module.parameters()]
        sharding = [self._place.replicas] if self._facts.sharded and self._place.replicas else []
        return clip_gradients(parameters, max_norm, pipeline=self._place.group, sharding=sharding)

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

    def _compiled(self, microbatches: int) -> _Compiled:
        """Return the program for a number of microbatches, made and checked once."""
        if microbatches not in self._cache:
            program = self._make(microbatches)
            check(program)
            if self._options.split:
                program = with_whole_last_backward(program, self._facts.sharded)
            program = with_reductions(program)
            lists = compile_all(program, self._facts)
            stages = Stages(program, self._modules, self._options)
            parts: dict[str, ModelPart] = dict.fromkeys(stages.kinds, stages)
            if self._vocabulary is not None:
                parts |= dict.fromkeys(self._vocabulary.kinds, self._vocabulary)
            pipelines = Pipelines(lists, collectives(program))
            self._cache[microbatches] = _Compiled(program, pipelines, parts)
        return self._cache[microbatches]

    def _run(self, compiled: _Compiled, data: StepData, walker: Walker) -> None:
        rank = self._place.rank
        running = walk(compiled.pipelines.lists[rank], data, walker)
        drive(running, self.deadline_s, self._board, compiled.pipelines, rank)

    def _reduce(self, reduction: Reduction, what: Pass) -> None:
        if what.stage not in self._facts.sharded:
            reduction.start([self._modules[what.stage]])

    def _finish(self, parts: Sequence[ModelPart], reduction: Reduction) -> Tensor:
        """End the step of all parts, and return the loss of all ranks."""
        if self._vocabulary is not None:
            reduction.start(self._vocabulary.modules())
        losses = [found for part in parts if (found := part.finish()) is not None]
        total = torch.zeros((), device=self._place.device)
        for loss in losses:
            total = total + loss.float()
        try:
            reduction.finish(self.deadline_s)
            for group in (self._place.group, self._place.replicas):
                if group is not None and group.size() > 1:
                    work = dist.all_reduce(total, group=group, async_op=True)
                    if total.is_cuda:
                        work.wait()
                    else:
                        work.wait(timedelta(seconds=self.deadline_s))
        except RuntimeError as error:
            self._board.give_up("")
            leave_at_exit()
            raise PeerLostError(
                f"rank {self._place.rank} has run all passes of step {self._step}, and waits for "
                f"other ranks' gradients or losses: {error}"
            ) from error
        return total
