"""A Hugging Face model with what its forward does between its modules, ready for a pipeline."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ...bubble_filling.filled_program import EncoderTimes, with_encoders
from ...ir.program import Program
from ...ir.registry import schedules
from ...planners.job.schema import read_stages
from ...planners.stage_split import SplitPlan, even_stages, make_split
from ...simulation.costs import unit_costs
from ..encoders.placement import EncoderSpec, is_encoder
from ..files import on_all_ranks
from ..links.meeting import find_device
from ..pipeline import Pipeline
from ..pretrained.loading import set_weights
from ..pretrained.making import find_precisions, materialise
from ..pretrained.saving import refuse_other_tensors, save_weights
from ..settings import (
    HiddenStates,
    LossFunction,
    ScheduleFunction,
    StageOptions,
    StepLoss,
    as_function,
    as_settings,
    is_registered,
    packed_shape,
)
from ..stage.checking import tiny_batch
from ..stage.splitting import CallLayer, split
from ..units.layout import Units
from ..vocabulary.loss import LossOptions
from ..vocabulary.shard import VocabParallel
from ..vocabulary.step import find_algorithm
from .images import ImageEncoder
from .layers import Layers
from .small import fill, small_model

# Ranks that load wait for each other as long, at least: shares and disks differ.
_LOAD_S = 1800.0


@dataclass(frozen=True, eq=False, slots=True)
class Adapted:
    """A model, and how a pipeline calls its modules.

    `list_name`: of its list of layers. `words`: the name of its embedding, `front`: of modules
    behind it; `norm`, `head`: of those after the layers. `layers`: calls the layers. `images`: its
    encoder, if it has one. `inside`: what the embedding multiplies by itself, `logits`: what the
    logits are multiplied with; `softcap` of them. `again`: adapts another model of the same class.
    """

    model: nn.Module
    list_name: str
    words: str
    front: tuple[str, ...]
    norm: str
    head: str
    layers: Layers
    again: Callable[[nn.Module], "Adapted"]
    images: ImageEncoder | None = None
    positions: str = ""
    inside: float = 1.0
    logits: float = 1.0
    softcap: float | None = None

    def modules(self, plan: SplitPlan, *, words: bool = True, head: bool = True) -> list[list[str]]:
        """Return the names of the modules of each stage, by which its weights' names begin.

        `words`, `head`: whether stages have the embedding and the head, which vocabulary passes
        divide otherwise.
        """
        layers = self.list_name
        names = [[f"{layers}.{number}" for number in stage.numbers] for stage in plan.stages]
        names[0] = [*([self.words] if words else []), *self.front, *names[0]]
        names[-1] += [self.norm, *([self.head] if head else [])]
        return names

    def split(
        self,
        plan: SplitPlan | str | Path,
        *,
        words: bool = True,
        head: bool = True,
        check: Any = None,
    ) -> list[nn.Module]:
        """Return the stages by number, compared with the model's forward as `split` does.

        `words`, `head`: as for `modules`. `check`: as for `split`; the images of a microbatch that
        has some, as {"input_ids": ids, **cp.hf_kwargs(batch, model)}, are encoded and merged. Of a
        model on the meta device a small one of its class is compared, or that of a config that is
        given as `check`. Raises ValueError as `split` does.
        """
        plan = read_stages(plan)
        if self.is_meta and check is not False:
            self._check_small(check, words=words, head=head)
            check = False
        # an embedding that is divided over ranks is looked up without its own forward
        layers = self.layers.cut(_sizes(plan), 1.0 if words else self.inside)
        fields = self._tiny() if check is None else check
        calls = self._calls(layers, head=head)
        cut = partial(
            split,
            self.model,
            plan,
            layers=self.list_name,
            first=(*([self.words] if words else []), *self.front),
            last=(self.norm, *([self.head] if head else [])),
            prepare=layers.prepare,
            finish=None if head else lambda logits: _capped(logits, self.softcap),
        )
        if fields is not False and self.images is not None and words:
            # a pipeline merges images by itself; for the check the words' call does
            cut(calls=calls | self.images.merging(self.words, fields), check=fields)
            fields = False
        return cut(calls=calls, check=fields)

    def _check_small(self, config: Any, *, words: bool, head: bool) -> None:
        """Raise ValueError where a small model of the same class is not split rightly."""
        model = small_model(self.model, config)
        small = self.again(model)
        plan = small.plan(min(2, len(small.layers.kinds)))
        fill(model, [*chain(*small.modules(plan)), *small._rotary()])
        small.split(plan, words=words, head=head)

    def _rotary(self) -> list[str]:
        """Return the name of the module that makes rotary embeddings, in no stage."""
        rotary = self.layers.rotary
        return [name for name, module in self.model.named_modules() if module is rotary]

    @property
    def is_meta(self) -> bool:
        """Return whether the model is on the meta device, without memory."""
        return any(p.is_meta for p in self.model.get_submodule(self.words).parameters())

    def _tiny(self) -> dict[str, Any]:
        """Return a microbatch of two packed samples of text, as forward takes it."""
        batch, axes = tiny_batch(self.model, self.words), self.layers.family.axes
        if axes > 1:  # the text's, by which masks are made, and the axes'
            batch["position_ids"] = batch["position_ids"].expand(1 + axes, 1, -1)
        return batch

    def pipeline(
        self,
        mesh: DeviceMesh | Units,
        schedule: str | ScheduleFunction,
        *,
        plan: SplitPlan | str | Path | None = None,
        check: Any = None,
        vocabulary: Mapping[str, Any] | None = None,
        images: Mapping[str, Any] | Literal[False] | None = None,
        weights: str | Path | int | None = None,
        loss: LossFunction | StepLoss | None = None,
        run: StageOptions = StageOptions(),  # noqa: B008 (it is frozen)
        **arguments: Any,
    ) -> Pipeline:
        """Return the pipeline that trains the model; all processes call it together.

        Steps are packed microbatches, with position_ids (1, tokens) that restart with each sample
        and labels at their own tokens' places, as the loader makes them.

        Args:
            mesh: As of Pipeline.
            schedule: As of Pipeline. One by name is filled with the encoder's passes, by numbers of
                parameters; give a function for one that was planned with measured times.
            plan: SplitPlan of the stages, or its file; default: even ones.
            check: As of `split`.
            vocabulary: Other arguments of VocabParallel, for a schedule with vocabulary passes.
            images: Other arguments of EncoderSpec, or False to train on text alone.
            weights: A folder of safetensors files, or a seed, for a model on the meta device.
            loss: As of Pipeline; default: the summed cross entropy.
            run: As of Pipeline, whose `merge` and `embedding` are the model's.
            arguments: Other arguments of Pipeline.

        Raises ValueError as Pipeline and `split` do, and for tensors that could not be saved.
        """
        if images is False:
            text = replace(self, images=None, layers=replace(self.layers, stacked=0))
            return text.pipeline(
                mesh, schedule, plan=plan, check=check, vocabulary=vocabulary, weights=weights,
                loss=loss, run=run, **arguments,
            )  # fmt: skip
        refuse_other_tensors(self.model, (self.words, self.head))
        ranks, seat = _seat(mesh)
        pictures = self.images
        make = self._with_inputs(as_function(schedule))
        # what layers of an encoder make: their embeddings are products, unlike those of words
        precision = {"dtype": run.autocast or self.dtype}
        specs = [] if pictures is None else [pictures.spec(**{**precision, **(images or {})})]
        if specs and is_registered(make) and not isinstance(mesh, Units):
            make = self._filled(make, specs)
        program = make(ranks, 2 * ranks)
        _refuse_without_encoder(program, pictures, mesh)
        kinds = {pass_.kind for row in program.ranks for pass_ in row}
        head, words = not kinds & {"S", "L"}, "IF" not in kinds
        plan = self.plan(program.stages) if plan is None else read_stages(plan)
        stages = self.split(plan, words=words, head=head, check=check)
        numbers = program.stages_of(seat) if seat < ranks else ()
        modules = self.modules(plan, words=words, head=head)
        names = [*chain(*(modules[number] for number in numbers)), *self._rotary()]
        if pictures is not None and _encodes(program, mesh, seat):
            names += [f"{pictures.base}.{name}" for name, _ in pictures.module.named_children()]
        units = self._materialise(names, weights, mesh)
        pipe = Pipeline(
            mesh,
            schedule=make,
            stages={number: stages[number] for number in numbers},
            loss=self._with_loss(as_settings(StepLoss, loss), head=head),
            vocabulary=None if head else self.vocabulary(program, **(vocabulary or {})),
            run=self._with_merging(run, words=words),
            **{"hidden": self._hidden_states(plan), "encoders": specs, **arguments},
        )
        if weights is not None:
            work = partial(set_weights, self.model, pipe.held(), units, weights)
            try:
                on_all_ranks(pipe, f"load {weights}", max(pipe.deadline_s, _LOAD_S), work)
            except Exception:
                pipe.close()
                raise
        return pipe

    def _hidden_states(self, plan: SplitPlan) -> HiddenStates:
        """Return what stages hand on, and the shape at both ends."""
        ends = partial(packed_shape, self.width)
        return HiddenStates(self.hidden(plan), self.dtype, lambda info: (1, *ends(info)))

    def _with_loss(self, loss: StepLoss, *, head: bool) -> StepLoss:
        """Return a loss with what the model decides. `head`: whether a stage has it."""
        function = loss.function or (summed_loss if head else None)
        routers = self.layers.routers
        auxiliary = loss.auxiliary if routers is None else routers.take
        return replace(loss, function=function, shift_labels=True, auxiliary=auxiliary)

    def _with_merging(self, run: StageOptions, *, words: bool) -> StageOptions:
        """Return options of stages with the model's extras, and how its images are merged."""
        extras = tuple(dict.fromkeys((*self.extras, *run.extras)))
        if self.images is None:
            return replace(run, extras=extras)
        embedding = self.words if words else run.embedding
        return replace(run, extras=extras, merge=self.images.merge, embedding=embedding)

    def save_pretrained(
        self,
        folder: str | Path,
        pipe: Pipeline,
        *,
        shard_bytes: int = 5 * 10**9,
        deadline_s: float | None = None,
    ) -> None:
        """Write the weights of a pipeline of this model for `from_pretrained`; all ranks call this.

        LoRA is merged into the weights of its layers. `shard_bytes`: of a file, which has one
        tensor at least. `deadline_s`: how long ranks wait for each other's files. Raises on every
        rank, and leaves no folder, if any fails: FileExistsError if the folder exists, OSError for
        what could not be written, and ValueError for weights of the model that no rank has.
        """
        save_weights(folder, pipe, self.model, shard_bytes, deadline_s)

    def _materialise(
        self, names: Iterable[str], weights: str | Path | int | None, mesh: DeviceMesh | Units
    ) -> dict[str, nn.Module]:
        """Give the modules of these names memory, if they have none, and return them by name."""
        if self.is_meta != (weights is not None):
            raise ValueError(
                "the model is on the meta device; give weights=, a folder of safetensors files, or "
                "a seed to draw them from"
                if self.is_meta
                else "the model has weights; make it under torch.device('meta') to give weights="
            )
        units = {name: self.model.get_submodule(name) for name in names}
        if weights is not None:
            device = find_device(mesh.device if isinstance(mesh, Units) else mesh.device_type)
            materialise(units, device, find_precisions(self.model, self.dtype))
        return units

    @property
    def dtype(self) -> torch.dtype:
        """Return the precision of the hidden states."""
        return next(self.model.get_submodule(self.words).parameters()).dtype

    @property
    def width(self) -> int:
        """Return the width of the hidden states."""
        return int(self.layers.config.hidden_size)

    @property
    def extras(self) -> tuple[str, ...]:
        """Return the fields of a microbatch that every stage needs."""
        mrope = ("mrope_position_ids",) if self.layers.family.axes > 1 else ()
        return ("position_ids", *mrope)

    def plan(self, stages: int) -> SplitPlan:
        """Return the plan of so many stages with even numbers of layers, the first ones more."""
        return make_split(even_stages(len(self.layers.kinds), stages))

    def hidden(self, plan: SplitPlan) -> Callable[[Any], tuple[int, ...]]:
        """Return the function from a microbatch's info to the shape of what stages hand on."""
        layers, width = self.layers.cut(_sizes(plan)), self.width
        return lambda info: (1, layers.rows(packed_shape(width, info)[0]), width)

    def vocabulary(self, program: Program, **arguments: Any) -> VocabParallel:
        """Return the words and the head for a program's vocabulary passes.

        `arguments`: other ones of VocabParallel.
        """
        inputs = any(pass_.kind == "IF" for row in program.ranks for pass_ in row)
        arguments = {
            "loss": LossOptions(softcap=self.softcap),
            "algorithm": find_algorithm(program),
            "lm_head_name": self.head,
            "embedding_name": self.words,
            **arguments,
        }
        head: Any = self.model.get_submodule(self.head)
        words: Any = self.model.get_submodule(self.words) if inputs else None
        return VocabParallel(head, words, **arguments)

    def _calls(self, layers: Layers, *, head: bool) -> dict[str, CallLayer]:
        """Return how the modules of stages are called. `head`: whether it is one of them.

        No function holds the model, of which a rank keeps its stages alone.
        """
        calls: dict[str, CallLayer] = {
            f"{self.list_name}.{number}": partial(layers.call, number)
            for number in range(len(layers.kinds))
        }
        if self.positions:
            calls[self.positions] = _add_positions
        # a head that is divided over ranks computes plain logits
        scale = 1.0 if head else self.logits
        calls[self.norm] = lambda norm, x, extras: layers.end(norm, x, extras) * scale
        if head:
            softcap, whole = self.softcap, self.logits
            calls[self.head] = lambda module, x, _: _capped(module(x) * whole, softcap)
        return calls

    def _with_inputs(self, make: ScheduleFunction) -> ScheduleFunction:
        """Return a schedule by name in which words that are tied to the head are divided, too."""
        if not is_registered(make):
            return make
        options = next((known.options for known in schedules() if known.name in make.args), ())
        words, head = (self.model.get_submodule(name).weight for name in (self.words, self.head))
        if "inputs" not in options or words is not head:
            return make
        return partial(make.func, *make.args, **{"inputs": True, **make.keywords})

    def _filled(self, base: ScheduleFunction, encoders: Sequence[EncoderSpec]) -> ScheduleFunction:
        """Return programs with the encoder's passes in their gaps, by numbers of parameters."""
        layer = _size(self.model.get_submodule(self.list_name))
        sizes = [tuple(_size(m) for _, m in spec.layers()) for spec in encoders]
        times = [EncoderTimes(layers, tuple(2 * size for size in layers)) for layers in sizes]

        def make(ranks: int, microbatches: int) -> Program:
            program = base(ranks, microbatches)
            layer_ns = layer // program.stages
            return with_encoders(program, unit_costs(layer_ns, 2 * layer_ns), times)

        return make


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy of a microbatch, summed, in single precision."""
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), reduction="sum")


def _capped(logits: Tensor, softcap: float | None) -> Tensor:
    return logits if softcap is None else (logits / softcap).tanh() * softcap


def _add_positions(module: nn.Module, x: Tensor, extras: Mapping[str, Any]) -> Tensor:
    return torch.add(x, module(extras["position_ids"]))


def _size(module: nn.Module) -> int:
    return 1 + sum(p.numel() for p in module.parameters())


def _sizes(plan: SplitPlan) -> tuple[int, ...]:
    return tuple(len(stage.numbers) for stage in plan.stages)


def _seat(mesh: DeviceMesh | Units) -> tuple[int, int]:
    """Return the ranks of a pipeline, and this process' place: beyond them without stages."""
    if isinstance(mesh, Units):
        return mesh.backbone.pp, mesh.seat(mesh.rank_of(dist.get_rank()))
    return mesh["pp"].size(), mesh["pp"].get_local_rank()


def _encodes(program: Program, mesh: DeviceMesh | Units, seat: int) -> bool:
    """Return whether a process has an encoder."""
    if isinstance(mesh, Units):
        return seat >= mesh.backbone.pp
    return any(is_encoder(item) for item in program.ranks[seat])


def _refuse_without_encoder(
    program: Program, images: ImageEncoder | None, mesh: DeviceMesh | Units
) -> None:
    """Raise ValueError for a program that would leave the images of microbatches out."""
    passes = any(is_encoder(item) for row in program.ranks for item in row)
    if images is not None and not passes and not isinstance(mesh, Units):
        raise ValueError(
            f"the model has an encoder of images, and the schedule {program.name!r} no passes of "
            f"it; fill it with with_encoders(), the encoder's {len(images.layers)} layers, give a "
            "schedule by its name, which is filled here, or images=False to train on text alone"
        )
