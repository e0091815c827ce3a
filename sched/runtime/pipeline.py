"""Run training steps of a model that is cut into stages, by any schedule that `check` accepts."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ...balancer.near_names import explain_arguments
from ..ir.program import Program
from ..replanning.decision import PlanChange, Replan
from ..simulation.measured import measured_timeline
from ..simulation.timeline import Slot, Timeline
from .encoders.part import rank_encoders
from .encoders.placement import EncoderSpec
from .encoders.travelling import TravellingImages, rank_images
from .execution.drive import TIMELINES_VARIABLE, T, drive, explain, meet, write_step
from .execution.waiting import Pipelines
from .execution.walk import Walker, walk
from .gradients import (
    EarlierGradients,
    Reduction,
    SharedParameters,
    SummedParameters,
    clip_gradients,
    in_several,
    refuse_wrapped,
    settle,
)
from .job.lanes import Lanes
from .job.programs import Programs
from .job.replanning import Replanner
from .job.start import (
    PlanOf,
    arrange,
    connect,
    first_count,
    report_missing_ranks,
    separate_encoders,
    start_deadline,
    vocabulary_part,
)
from .model_state import HeldModules, RankState, load_model, load_optimizer, own_state
from .parts import ModelPart, Reading, Steps, list_steps
from .settings import (
    HiddenStates,
    LossFunction,
    ScheduleFunction,
    Shape,
    StageModules,
    StageOptions,
    StepLoss,
    as_function,
    as_settings,
)
from .stage.agreement import ModelFacts, collect_facts
from .stage.calling import make_merging
from .stage.generator import GeneratorSpec, rank_generator
from .stage.splitting import with_ties
from .units.layout import Units
from .units.lists import joined
from .units.place import agree, replicated
from .vocabulary.shard import VocabParallel, VocabularyShard


@dataclass(frozen=True, slots=True)
class StepResult:
    """The loss of a step's global batch, the same on every rank, without a graph."""

    step: int
    loss: Tensor


@explain_arguments(
    lambda: {"stages": StageModules, "hidden": HiddenStates, "loss": StepLoss, "run": StageOptions},
    words={
        "images": "encoders=TravellingImages(...)",
        "loss_fn": "loss=",
        "options": "schedule=partial(schedule, NAME, ...) with the schedule's options",
    },
)
class Pipeline:
    """A model whose stages are on the ranks of a mesh, and the schedule that trains it.

    Args:
        mesh: A DeviceMesh with a dimension "pp", "dp" if the stages have replicas, and "tp" if
            their modules are divided; or Units, the same in every process, for encoders of their
            own ranks.
        schedule: A registered name, `partial(schedule, name, option=...)` of it, or a function of
            (ranks, microbatches) that returns a Program.
        stages: {number of a stage: nn.Module}, this rank's, or StageModules. The first stage's is
            called with the fields `inputs`, the others with the hidden states; all get the fields
            `extras` by keyword, and return one tensor.
        hidden: The last dimension of the hidden states, whose others are the microbatch's tokens, a
            function from its info to their whole shape, or HiddenStates.
        loss: A function of the last stage's output and the labels that returns the sum over the
            microbatch, or StepLoss; default: the loss of `vocabulary`.
        vocabulary: VocabParallel, for a schedule with vocabulary passes; default: none.
        encoders: EncoderSpecs, the same on every rank, for a schedule with encoder passes, or
            TravellingImages, which all ranks of a mesh encode before the passes; default: none.
        generator: GeneratorSpec, the same on every rank; default: none.
        run: StageOptions: fields of stages, recomputation, autocast, how features are merged.
        deadline_s: How long a rank waits for another one, in seconds; default 300.
        timelines: A folder to which every step's times are written, for `counterpoise profile`;
            default: that of COUNTERPOISE_TIMELINES in the environment.
        replan: Replan, how the plan is made again when steps take other times; default "off".

    Raises ValueError for stages, schedules and settings that do not fit together, and
    PipelineStalledError if other processes do not come to make it within `deadline_s`, or within a
    minute if that is longer.
    """

    def __init__(
        self,
        mesh: DeviceMesh | Units,
        *,
        schedule: str | ScheduleFunction,
        stages: Mapping[int, nn.Module] | StageModules,
        hidden: int | Shape | HiddenStates,
        loss: LossFunction | StepLoss | None = None,
        vocabulary: VocabParallel | None = None,
        encoders: Sequence[EncoderSpec] | TravellingImages = (),
        generator: GeneratorSpec | None = None,
        run: StageOptions = StageOptions(),  # noqa: B008 (it is frozen)
        deadline_s: float = 300.0,
        timelines: str | Path | None = None,
        replan: Replan | Literal["off"] = "off",
    ) -> None:
        make, stages = as_function(schedule), as_settings(StageModules, stages)
        hidden, loss = as_settings(HiddenStates, hidden), as_settings(StepLoss, loss)
        if not isinstance(run, StageOptions):
            raise ValueError(f"run is {run!r:.80}; give StageOptions(extras=..., merge=...)")
        specs, images = separate_encoders(encoders)
        self._modules, self._options, self._loss = dict(stages.modules), run, loss
        refuse_wrapped(self._modules)
        self.deadline_s, self._step = deadline_s, 0
        self._timelines = timelines or os.environ.get(TIMELINES_VARIABLE)
        with report_missing_ranks():
            self._place, plan_of = arrange(mesh, make, specs, generator, deadline_s)
        place, units = self._place, self._place.units
        first = joined(plan_of(first_count(units)).programs)
        parts = units.encoder.dp if units.encoder is not None and units.spread else 0
        self._encoders = rank_encoders(specs, first, place.seat, parts)
        self._generator = rank_generator(generator, first, place.seat)
        replicas = 1 if place.replicas is None else place.replicas.size()
        sizes = None if self.in_units else (replicas, place.ranks)
        self._images = rank_images(images, place.rank, sizes, run)
        self._vocabulary = vocabulary_part(first, vocabulary, loss, place, run)
        self._reading = Reading(hidden, loss, place.device)
        shared = with_ties(stages.shared, self._modules, first.placement)
        with report_missing_ranks():
            self._facts, self._lanes = self._agree(shared, first)
            self._programs = self._make_programs(plan_of, first)
            # a schedule's own function may make all of its programs for one number
            compiled = self._programs.compiled(first.microbatches // units.backbone.dp)
            sharers = {*self._facts.shared.values()}
            self._groups, self._board = connect(
                compiled.program, self._programs.channels, place, deadline_s, sorted(sharers)
            )
            self._shared, self._summed = self._share(shared)
        self.replanner = self._follow(replan)
        self._measured: tuple[int, list[Slot]] = (0, [])
        self._pipelines, self._name, self._placement = Pipelines((), {}), "", first.placement

    def _share(
        self, parameters: Mapping[str, nn.Parameter]
    ) -> tuple[SharedParameters, SummedParameters]:
        """Give the copies of shared parameters the same values; all ranks do it together."""
        copies = self._copies(parameters)
        named = {**{n: copies[n] for n in copies if n in self._facts.shared}, **parameters}
        shared = SharedParameters(self.rank, named, self._facts.shared, self._groups.sharers)
        shared.copy_values(start_deadline(self.deadline_s))
        late = in_several([*self._modules.values()]) | {id(p) for p in parameters.values()}
        modules = [m for _, m in self._layers] + ([] if self._shard is None else [self._shard])
        lanes, values = self._place.lanes, shared.parameters.values()
        return shared, SummedParameters(self._modules, modules, lanes, late, values)

    def _follow(self, replan: Replan | Literal["off"]) -> Replanner | None:
        """Return what follows the measured steps, if the plan may change."""
        if replan == "off":
            return None
        if not isinstance(replan, Replan):
            raise ValueError(f"replan is {replan!r:.80}; give Replan(...), or 'off'")
        if self.in_units or self._generator.spec is not None:
            raise ValueError(
                "plans of units and with a generator are not made again; give "
                'replan="off", or encoders in the bubbles alone'
            )
        return Replanner(replan, self._programs, self._place, self.deadline_s)

    @property
    def rank(self) -> int:
        """Return this process' rank in its pipeline."""
        return self._place.rank

    @property
    def replica(self) -> int:
        """Return this process' data-parallel index."""
        return self._place.replica

    @property
    def lane(self) -> int:
        """Return this process' tensor-parallel index."""
        return self._place.lane

    def modules(self) -> tuple[nn.Module, ...]:
        """Return what this rank trains: stages, its part of the vocabulary, encoders, generator."""
        held = self.held()
        shard = () if held.shard is None else (held.shard,)
        return (*held.stages.values(), *shard, *(module for _, module in held.layers))

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield what this rank trains, for its optimizer; a tied parameter once."""
        parameters = (p for module in self.modules() for p in module.parameters())
        yield from {id(p): p for p in parameters}.values()

    def fields(self, rank: int) -> frozenset[str]:
        """Return the fields of a microbatch that a pipeline rank, or a rank of units, needs."""
        return self._programs.list_fields(self._place.units.seat(rank))

    def needs(self, info: Any) -> frozenset[str]:
        """Return the fields of a microbatch that this process needs: `DataLoader(fields=...)`."""
        if self.replanner is not None:  # another plan may come before the microbatch is trained on
            return self._programs.list_fields(self._place.seat)
        return self._programs.find_needs(info)

    def step(self, step: Steps) -> StepResult:
        """Run forward and backward of a step; its gradients, summed over replicas, go to `.grad`.

        An encoder's rank of units is given the steps of all data-parallel ranks. Gradients are
        added to what is there, as `backward` does. The optimizer is the caller's, and so is zeroing
        gradients. Raises PipelineStalledError if a peer is dead, stopped or hangs.
        """
        return self._run_step(step, training=True)

    def evaluate(self, step: Steps) -> StepResult:
        """Run the forward passes of a step, and return its loss; no gradient changes.

        Modules with dropout are to be put into `eval()` before. Raises as `step` does.
        """
        return self._run_step(step, training=False)

    def _run_step(self, step: Steps, *, training: bool) -> StepResult:
        count = self._programs.count_microbatches(step)
        compiled = self._programs.compiled(count, training)
        data = self._programs.read_step(compiled, self._reading, step, training)
        data = self._images.encode(data, count, is_first=0 in self._modules)
        parts = list(dict.fromkeys(compiled.parts.values()))
        for part in parts:
            part.begin_step(data)
        reduction = Reduction(self._place.replicas)
        walker = Walker(
            compiled.parts, self._groups, compiled.pipelines.collectives,
            reduce=lambda pass_: reduction.start(self._summed.stage_parameters(pass_.stage)),
            waits=self._board.begin_step(self._step),
            took=compiled.took,
        )  # fmt: skip
        replicas = self._place.replicas is not None and self._place.replicas.size() > 1
        with EarlierGradients(self._summed.every(replicas=replicas) if training else ()):
            self._pipelines = lists = compiled.pipelines
            running = walk(lists.lists[self.rank], data, walker)
            drive(running, self.deadline_s, self._board, lists, self.rank)
            if training:
                reduction.start(self._summed.after_passes())
            loss = self._finish(parts, reduction, training)
        self._images.finish()
        self._board.end_step()
        self._measured, self._name = (count, walker.measured), compiled.program.name
        if self._timelines:
            self._write_timeline(Path(self._timelines), step)
        if training and self.replanner is not None:
            with self._explained():
                self.replanner.follow(count, walker.measured, list_steps(step)[0].infos)
        self._step += 1
        return StepResult(self._step - 1, loss)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients to a norm of at most `max_norm` over the whole model.

        Returns the norm before. All ranks call it after `step`. Raises PipelineStalledError as
        `step` does.
        """
        with self._explained():
            return clip_gradients(
                self.parameters(), max_norm, pipelines=self._place.groups,
                shared=[*self._shared.counted_elsewhere(), *self._images.counted_elsewhere()],
                deadline_s=self.deadline_s)  # fmt: skip

    def programs(self) -> dict[int, Program]:
        """Return the programs that the schedule has made so far, by number of microbatches."""
        return dict(self._programs.bases)

    @property
    def in_units(self) -> bool:
        """Return whether encoders or a generator have ranks of their own."""
        return self._place.units.beside > 0

    def plan_changes(self) -> tuple[PlanChange, ...]:
        """Return the plans that were taken since the job began, with what each one saves."""
        return () if self.replanner is None else self.replanner.state.changes

    def measured_costs(self) -> tuple[str, tuple[int, int] | None]:
        """Return the cost profile as JSON, "" without `replan`, and epoch and step trained last."""
        return ("", None) if self.replanner is None else self.replanner.measured_costs()

    def state(self, optimizer: torch.optim.Optimizer | None = None) -> RankState:
        """Return this rank's part of a checkpoint (`save_checkpoint` writes all ranks').

        With stages that FSDP2 shards, all ranks call this together. Raises ValueError for names
        that mean several tensors, and optimizers whose state cannot be divided.
        """
        if self._facts.unclear:
            raise ValueError(
                f"several ranks have a parameter called {', '.join(self._facts.unclear[:3])}; name "
                "a stage's tensors as in the whole model, such as layers.7.up.weight, and give "
                "those that ranks have in common as StageModules(..., shared=...)"
            )
        return own_state(self.held(), optimizer)

    def load_state(self, state: RankState, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Take this rank's part of a whole state, whatever layout it was saved on.

        Raises ValueError for a model or an optimizer that it does not fit.
        """
        load_model(self.held(), state.model)
        if optimizer is not None:
            load_optimizer(self.held(), optimizer, state)

    def exchange(self, message: T, task: str, deadline_s: float | None = None) -> list[T]:
        """Return what all processes of the job, which come here to do `task`, give by rank.

        Raises PipelineStalledError that names those which do not come.
        """
        return meet(message, task, self._place.device, deadline_s or self.deadline_s, self._board)

    def held(self) -> HeldModules:
        """Return this rank's modules, as their tensors are named in a checkpoint."""
        parts = (self._encoders, self._generator, self._images)
        elsewhere = frozenset[str]().union(*(part.saved_elsewhere() for part in parts))
        layers = [*self._layers, *self._images.named_modules().items()]
        return HeldModules(self._modules, self._shard, layers, elsewhere)

    def timeline(self) -> Timeline:
        """Return the timeline of the last step of a rank's replica; all ranks call it.

        Times are of the hosts' monotonic clocks, so ranks of one pipeline must share a host. On
        CUDA they are the times at which passes were launched.
        """
        count, slots = self._measured
        with self._explained():
            rows = self._place.gather(slots, self.deadline_s)
        return measured_timeline(self._name, self._placement, self._programs.own_rows(rows, count))

    def _write_timeline(self, folder: Path, step: Steps) -> None:
        timeline = self.timeline()
        if self.rank == 0 and self.replica == 0 and self.lane == 0:
            costs = [dict(info.costs) for info in list_steps(step)[0].infos]
            write_step(folder, self._step, timeline, costs)

    def close(self) -> None:
        """Stop publishing where this rank stands, and give up the process groups."""
        self._board.close()
        self._groups.close()

    @property
    def _layers(self) -> list[tuple[str, nn.Module]]:
        """Return the layers of encoders, and a generator, with names that are one on all ranks."""
        return [*self._encoders.named_modules(), *self._generator.named_modules().items()]

    @property
    def _shard(self) -> VocabularyShard | None:
        return None if self._vocabulary is None else self._vocabulary.shard

    def _agree(
        self, shared: Mapping[str, nn.Parameter], first: Program
    ) -> tuple[ModelFacts, Lanes]:
        """Return what all ranks' modules say of the model together, and this rank's lanes."""
        limit_s = start_deadline(self.deadline_s)
        lanes = Lanes(self._place, self._modules, self.held().called(), limit_s)
        lanes.agree()
        embedding = self._vocabulary.shard.embedding if self._vocabulary else None
        trained, copies = self._encoders.trained(), self._copies(shared)
        names = self._generator.name, self._images.is_trained()
        facts = collect_facts(self._modules, embedding, shared, trained, copies, *names)
        return agree(facts, first, self._place, limit_s), lanes

    def _copies(self, shared: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return the parameters that are no shared ones, of which other ranks have copies."""
        known = {id(p) for p in shared.values()}
        copies = replicated(self._place, self._modules, self._shard, known)
        named = {f"{n}.{inside}": p for n, m in self._layers for inside, p in m.named_parameters()}
        return named | copies

    def _make_programs(self, plan_of: PlanOf, first: Program) -> Programs:
        """Return what compiles this rank's programs. `first`: of all replicas."""
        embedded = self._shard is not None and self._shard.embedding is not None
        stages, run = self._modules, self._options
        merging = make_merging(run, stages.get(0), embedded=embedded)
        return Programs(
            plan_of, self._place, stages, run, self._loss, self._vocabulary, self._encoders,
            self._generator, merging, self._generator.capture(stages.get(first.stages - 1)),
            self._facts, first.placement, self._images,
        )  # fmt: skip

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Name the ranks that do not come where sums over ranks do not come after a step."""
        try:
            yield
        except RuntimeError as error:
            if not self._pipelines.lists:  # no step was run, so no rank waits in one
                raise
            raise explain(error, self._board, self._pipelines, self._place.rank) from error
        except ValueError as error:  # what only this rank has found: the others are told
            self._board.give_up(str(error))
            raise

    def _finish(self, parts: Sequence[ModelPart], reduction: Reduction, training: bool) -> Tensor:
        """End the step of all parts, and return the loss of all ranks."""
        losses = [loss for part in parts if (loss := part.finish_step()) is not None]
        total = sum((loss.float() for loss in losses), torch.zeros((), device=self._place.device))
        with self._explained():
            reduction.finish(self.deadline_s)
            if training:
                self._shared.sum_gradients(self.deadline_s)
                settle(self.parameters())  # those that no sum over ranks was made of
                self._lanes.compare_gradients()
            self._place.add_up(total, self.deadline_s)
        return total
