"""The values of Pipeline's arguments that hold several settings. The runtime reads these records.

`stages={0: module}`, `hidden=64` and `loss=function` are short for the values' first fields.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from ...balancer.near_names import check_name, explain_arguments
from ..ir.program import Program
from ..ir.registry import schedule as make_program

# schedule(ranks, microbatches) -> the program of a pipeline
ScheduleFunction = Callable[[int, int], Program]
# loss(output, *labels) -> a scalar, the sum over the microbatch
LossFunction = Callable[..., Tensor]
# auxiliary(fields of the microbatch) -> a scalar
Auxiliary = Callable[[Mapping[str, Any]], Tensor]
# merge(embeddings, features by encoder, fields of the microbatch) -> embeddings
Merge = Callable[[Tensor, Mapping[str, Tensor], Mapping[str, Any]], Tensor]
# shape(what describes the microbatch) -> the whole shape of a tensor
Shape = Callable[[Any], tuple[int, ...]]
NOTHING = nullcontext()
Settings = TypeVar("Settings")


def as_settings(cls: type[Settings], argument: Any) -> Settings:
    """Return an argument that may be the short form of a value as this value."""
    make: Any = cls
    return argument if isinstance(argument, cls) else make(argument)


def as_function(schedule: str | ScheduleFunction) -> ScheduleFunction:
    """Return the function of a schedule. Raises ValueError for other values than names and those.

    Of a registered name it is a `partial`, as users write one to give options.
    """
    if isinstance(schedule, str):
        return partial(make_program, schedule)
    if not callable(schedule):
        raise ValueError(
            f"schedule is a {type(schedule).__name__}; give a registered name such as '1f1b', or a "
            "function of (ranks, microbatches) that returns a Program"
        )
    return schedule


def is_registered(schedule: ScheduleFunction) -> TypeGuard["partial[Program]"]:
    """Return whether a function makes a registered schedule, which has programs for all ranks."""
    return isinstance(schedule, partial) and schedule.func is make_program


def weigh_by_token(info: Any) -> float:
    """Return the weight of a loss that is a sum over labels, for the mean over the step's."""
    if not info.step_label_tokens:
        raise ValueError(
            "the step has no label tokens to average over; give the loader's cost= a resource "
            "'label_tokens' (the labels that count), or the pipeline "
            "loss=StepLoss(..., weigh='sample')"
        )
    return 1.0 / float(info.step_label_tokens)


def weigh_by_sample(info: Any) -> float:
    """Return the weight of a loss that is a sum over samples, for the mean over the step's."""
    return 1.0 / float(max(1, info.step_samples))


Weigh = Callable[[Any], float]
WEIGHTS: Mapping[str, Weigh] = {"token": weigh_by_token, "sample": weigh_by_sample}


def weigh_microbatch(weigh: str | Weigh, info: Any) -> float:
    """Return what a microbatch's loss counts in the step's, by a name or a function."""
    return (WEIGHTS[weigh] if isinstance(weigh, str) else weigh)(info)


def packed_shape(width: int, info: Any) -> tuple[int, int]:
    """Return the shape of packed hidden states: (the microbatch's tokens, width)."""
    if getattr(info, "empty", False):
        # The loader's batch of no samples: one pad token, without weight.
        return 1, width
    if "tokens" not in info.costs:
        raise ValueError(
            f"the microbatch's costs are {sorted(info.costs)}, without tokens; give hidden= as "
            "a function from its info to the hidden states' shape"
        )
    return info.costs["tokens"], width


@explain_arguments()
@dataclass(frozen=True, eq=False, slots=True)
class StageModules:
    """The stages of this rank: `Pipeline(stages=StageModules({0: module}, shared=...))`.

    Args:
        modules: {number of a stage: nn.Module}, those that the schedule puts on this rank.
        shared: {name: parameter}, this rank's copies of parameters that other pipeline ranks hold,
            too (replicated layers), by the same names there; default: those of encoders, and ties
            of stages made by `split`. They start with the first rank's values, get the sum of all
            copies' gradients, and count once in the norm.

    Raises ValueError for other stages than modules.
    """

    modules: Mapping[int, nn.Module]
    shared: Mapping[str, nn.Parameter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.modules, Mapping):
            kind = type(self.modules).__name__
            raise ValueError(f"stages is a {kind}; give {{number of the stage: nn.Module}}")
        for number, module in self.modules.items():
            if not isinstance(module, nn.Module):
                raise ValueError(f"stage {number} is a {type(module).__name__}; give an nn.Module")


@explain_arguments()
@dataclass(frozen=True, slots=True)
class HiddenStates:
    """What stages hand on: `Pipeline(hidden=HiddenStates(64, dtype=torch.bfloat16))`.

    Args:
        shape: Their last dimension, where the others are the microbatch's tokens, or a function
            from its info to their whole shape.
        dtype: Their precision; default torch.float32.
        ends: From a microbatch's info the shape of the input embeddings, and of the last stage's
            output, which vocabulary passes make and take; default: as `shape`.

    Raises ValueError for other values.
    """

    shape: int | Shape
    dtype: torch.dtype = torch.float32
    ends: Shape | None = None

    def __post_init__(self) -> None:
        shape = self.shape
        if not callable(shape) and (not isinstance(shape, int) or shape < 1):
            raise ValueError(
                f"hidden is {shape!r:.80}; give the last dimension of the hidden states, such as "
                "64, or a function from a microbatch's info to their whole shape"
            )
        if not isinstance(self.dtype, torch.dtype):
            raise ValueError(f"dtype is {self.dtype!r:.80}; give a torch.dtype: torch.bfloat16")

    def find_shape(self, info: Any) -> tuple[int, ...]:
        """Return the shape of a microbatch's hidden states."""
        shape = self.shape
        return packed_shape(shape, info) if isinstance(shape, int) else tuple(shape(info))


@explain_arguments()
@dataclass(frozen=True, slots=True)
class StepLoss:
    """The loss of a step: `Pipeline(loss=StepLoss(function, shift_labels=True))`.

    Args:
        function: Called with the last stage's output and the fields `labels`, returns the sum over
            the microbatch; None where vocabulary passes compute the loss.
        labels: The fields that the function gets; default ("labels",).
        shift_labels: Whether each label stands at its own token's place, as in the loader's batches
            and for models of transformers, and is to be moved to the token before; a sample's first
            label must be one that the loss ignores. A step of Layout(shift_labels=False) is taken
            as it is. Default False.
        weigh: What a microbatch's loss counts in the step's: "token", "sample", or a function of
            its info; default "token".
        auxiliary: Called with the microbatch's fields behind the last stage, returns what is added
            to its summed loss, beside vocabulary passes, too; default: none.

    Raises ValueError for other values.
    """

    function: LossFunction | None = None
    labels: tuple[str, ...] = ("labels",)
    shift_labels: bool = False
    weigh: str | Weigh = "token"
    auxiliary: Auxiliary | None = None

    def __post_init__(self) -> None:
        if self.function is not None and not callable(self.function):
            raise ValueError(
                f"loss is {self.function!r:.80}; give a function of the last stage's output and "
                "the labels that returns the sum over the microbatch"
            )
        _check_fields("labels", self.labels)
        if not callable(self.weigh):
            check_name("weigh", self.weigh, WEIGHTS, ", or a function of a microbatch's info")


@explain_arguments()
@dataclass(frozen=True, slots=True)
class StageOptions:
    """How stages are run: `Pipeline(run=StageOptions(extras=("position_ids",)))`.

    Args:
        inputs: The fields that the first stage's module is called with; default ("input_ids",).
        extras: The fields that every module gets by keyword; default: none.
        recompute: Whether F keeps only its input and the backward repeats it; default False.
        autocast: The precision of torch.autocast, in encoders and generator, too; default: none.
        split: Whether I puts weight gradients off; False makes it a whole backward. Default True.
        merge: Called with the embeddings, the encoders' features by name, and the microbatch's
            fields on this rank, returns what the first stage goes on with; default: its module gets
            the features as its last arguments.
        embedding: The name of the layer in the first stage's module whose output is merged with;
            default: the only `nn.Embedding` there.

    Raises ValueError for fields that are no tuple of names.
    """

    inputs: tuple[str, ...] = ("input_ids",)
    extras: tuple[str, ...] = ()
    recompute: bool = False
    autocast: torch.dtype | None = None
    split: bool = True
    merge: Merge | None = None
    embedding: str = ""

    def __post_init__(self) -> None:
        _check_fields("inputs", self.inputs)
        _check_fields("extras", self.extras)

    def cast(self, near: Tensor) -> AbstractContextManager[Any]:
        """Return the context of autocast on a tensor's device."""
        if self.autocast is None:
            return NOTHING
        return torch.autocast(near.device.type, self.autocast)


def _check_fields(name: str, fields: Sequence[str]) -> None:
    """Raise ValueError for one name, whose letters would be taken for fields, and other values."""
    if isinstance(fields, str) or not isinstance(fields, Sequence):
        advice = f"({fields!r},)" if isinstance(fields, str) else "('input_ids',)"
        raise ValueError(f"{name} is {fields!r:.80}; give a tuple of fields: {advice}")
