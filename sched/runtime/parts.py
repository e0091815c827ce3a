"""The interface between the executor and the parts of a model, and the data of a step.

Sizes come from the plan, so no rank has to ask another for one: `MicrobatchData.hidden` is the same
on all pipeline ranks of a data-parallel index, whatever fields each of them holds.

What an edge of the program takes from a pass is returned by the name `X_` and its kind: an EF
returns X_EF, features, and a B whose features' gradients an encoder waits for returns X_B beside B.
Passes at the edges' other ends are given a tuple by that name, a tensor for each of their edges.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..ir.program import Pass
from .compiled import Value
from .settings import HiddenStates, StepLoss, weigh_microbatch


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that crosses ranks. `parts`: the shapes of several that are one flat one then."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    parts: tuple[tuple[int, ...], ...] = ()

    def empty(self, device: torch.device | str) -> Tensor:
        """Return a tensor of this shape with arbitrary content."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def check(self, tensor: Tensor, subject: str, advice: str) -> None:
        """Raise ValueError, which begins with `subject`, if a tensor is not what ranks expect."""
        if (tuple(tensor.shape), tensor.dtype) != (self.shape, self.dtype):
            raise ValueError(
                f"{subject} {tuple(tensor.shape)} {tensor.dtype}, the plan says {self.shape} "
                f"{self.dtype}; {advice}"
            )


@dataclass(frozen=True, slots=True)
class MicrobatchData:
    """One microbatch as a rank has it.

    `fields`: the tensors that the loader gave this rank, by name. `weight`: what the microbatch's
    loss, a sum over its tokens or samples, counts in the step's, such as one by the number of
    label tokens of the whole step. `hidden`: the tensor between any two stages. `ends`: the input
    embeddings and the last stage's output, where stages hand on more than hidden states. `info`:
    the description that the sizes follow from.
    """

    fields: Mapping[str, Tensor]
    weight: float
    hidden: TensorSpec
    ends: TensorSpec | None = None
    info: Any = None


# A microbatch of which this rank runs nothing.
ELSEWHERE = MicrobatchData({}, 0.0, TensorSpec(()))


@dataclass(frozen=True, slots=True)
class StepData:
    """The microbatches of one step, in the program's numbering.

    `input_gradient`: whether the gradient of each stage's input is wanted by anything before it,
    and at the end, of the last stage's output: one more than there are stages. `edges`: the size of
    what the program's edges carry, where it is not that of hidden states. `precision`: the same for
    the precision of what the barriers of these names bring. `training`: whether there are backward
    passes; without, no part adds to a gradient. `features`: of microbatches whose images were
    encoded before the passes, leaves whose gradients are taken after them.
    """

    microbatches: tuple[MicrobatchData, ...]
    input_gradient: tuple[bool, ...]
    edges: Mapping[Value, TensorSpec] = field(default_factory=dict)
    precision: Mapping[str, torch.dtype] = field(default_factory=dict)
    training: bool = True
    features: Mapping[int, Tensor] = field(default_factory=dict)

    def spec(self, value: Value) -> TensorSpec:
        """Return the size of a value that one rank sends to another, or that a barrier brings."""
        microbatch = self.microbatches[value.microbatch]
        between = value.name in ("F", "B")
        hidden = self.edges.get(value) or (
            microbatch.hidden if between else microbatch.ends or microbatch.hidden
        )
        dtype = self.precision.get(value.name)
        return hidden if dtype is None else replace(hidden, dtype=dtype)


Given = Mapping[str, Any]
Made = Mapping[str, Any]


class ModelPart(Protocol):
    """Runs the passes of some kinds on one rank; one object may serve several kinds and stages."""

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of passes that the part runs, such as {"S", "T", "C"}."""

    def begin_step(self, data: StepData) -> None:
        """Take the microbatches of the step that starts; parts of rank 0 get the same sizes."""

    def run_pass(self, pass_: Pass, reads: Given) -> Made:
        """Run one pass: from the values that it reads, by name, to those that it makes, or None."""

    def finish_step(self) -> Tensor | None:
        """End the step: return the sum of the weighted losses that this rank has, or None.

        Over all ranks the sums add up to the step's loss, so only one rank returns each.
        """


class Joint(NamedTuple):
    """The features of one F, by encoder.

    `names`: the encoders. `takes`: for each the name of what an edge brings. `returned`: whether
    its gradient is wanted. `order`: of parts of one encoder's, each one's place in
    what edges bring; () without parts.
    """

    names: tuple[str, ...]
    takes: tuple[str, ...]
    returned: tuple[bool, ...]
    order: tuple[int, ...] = ()

    def features(self, reads: Given) -> list[Tensor]:
        """Return the features of all encoders as leaves of the stage's graph."""
        edges = zip(self.takes, self.returned, strict=True)
        return [
            reads[name][self.order[at] if self.order else 0].detach().requires_grad_(needs_gradient)
            for at, (name, needs_gradient) in enumerate(edges)
        ]

    def joined(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Return features by encoder, from those of parts."""
        return [torch.cat([*features])] if self.order else [*features]


def gradient_or_zeros(leaf: Tensor) -> Tensor:
    """Return a leaf's gradient: zeros where nothing depends on it, since another rank waits."""
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def pack(gradients: Sequence[Tensor]) -> Tensor:
    """Return gradients as one tensor, since a pass sends one; `unpack` takes it apart."""
    if len(gradients) == 1:
        return gradients[0]
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def unpack(packed: Tensor, shapes: Sequence[tuple[int, ...]], which: int) -> Tensor:
    """Return one of the gradients of these shapes that were packed."""
    if len(shapes) == 1:
        return packed.view(shapes[0])
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return torch.split(packed, sizes)[which].view(shapes[which])


class StepOfMicrobatches(Protocol):
    """A rank's microbatches of a step, such as the loader's Step."""

    @property
    def microbatches(self) -> Sequence[Mapping[str, Any]]:
        """The fields that this rank needs, by name."""

    @property
    def infos(self) -> Sequence[Any]:
        """What describes each microbatch, such as StepInfo, the same on all pipeline ranks."""


# One step, or those of several data-parallel ranks.
Steps = StepOfMicrobatches | Sequence[StepOfMicrobatches]


def list_steps(step: Steps) -> list[StepOfMicrobatches]:
    """Return the steps that a rank is given, one for each data-parallel rank that it works for."""
    steps: Any = step
    if not hasattr(steps, "microbatches"):
        return list(steps)
    by_rank = getattr(steps, "by_rank", None)
    return [steps] if by_rank is None else list(by_rank())


def count_tokens(whose: str, tokens: Mapping[str, int] | Callable[[Any], int], info: Any) -> int:
    """Return the tokens of a microbatch by its costs, or a function. Raises ValueError."""
    if getattr(info, "empty", False):
        return 0
    if not isinstance(tokens, Mapping):
        return tokens(info)
    if missing := sorted(set(tokens) - set(info.costs)):
        raise ValueError(
            f"{whose} counts its tokens by {', '.join(missing)}, the microbatch's costs are "
            f"{sorted(info.costs)}; name one of them, or give a function"
        )
    return sum(per_unit * info.costs[resource] for resource, per_unit in tokens.items())


@dataclass(frozen=True, slots=True)
class Reading:
    """The way in which a step of the loader is read, with sizes and weights of microbatches."""

    hidden: HiddenStates
    loss: StepLoss
    device: torch.device

    def read(
        self,
        step: StepOfMicrobatches,
        input_gradient: tuple[bool, ...],
        training: bool,
        needed: Sequence[frozenset[str]],
    ) -> StepData:
        """Return the step for the parts, on the device. Raises ValueError for a missing field.

        `needed`: the fields of each microbatch that this rank reads; others stay on the host.
        """
        microbatches, hidden = [], self.hidden
        rows = zip(step.microbatches, step.infos, needed, strict=True)
        for number, (batch, info, names) in enumerate(rows):
            if missing := sorted(names - set(batch)):
                raise ValueError(
                    f"microbatch {number} has no field {', '.join(missing)}, which this rank "
                    f"needs; it has {', '.join(sorted(batch))}. Pipeline.needs says what to load"
                )
            # unless they are so already
            moves = self.loss.shift_labels and getattr(info, "shift_labels", True)
            moved = self.loss.labels if moves else ()
            fields = {name: self._field(batch[name], name in moved) for name in names}
            spec = TensorSpec(hidden.find_shape(info), hidden.dtype)
            ends = hidden.ends and TensorSpec(tuple(hidden.ends(info)), hidden.dtype)
            weight = weigh_microbatch(self.loss.weigh, info)
            microbatches.append(MicrobatchData(fields, weight, spec, ends, info))
        return StepData(tuple(microbatches), input_gradient, training=training)

    def _field(self, value: Any, moves: bool) -> Tensor:
        tensor = torch.as_tensor(value).to(self.device, non_blocking=True)
        # What comes around to the end is the label of a sample's first token, which never counts.
        return tensor.roll(-1, dims=-1) if moves else tensor
