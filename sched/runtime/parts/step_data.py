"""A rank's data of a step: its microbatches, their weights, and the sizes of all tensors.

Sizes come from the plan, so no rank has to ask another for one: `MicrobatchData.hidden` is the same
on all pipeline ranks of a data-parallel index, whatever fields each of them holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..compiled.ops import Value


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The shape and the precision of a tensor that crosses ranks."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def empty(self, device: torch.device | str) -> Tensor:
        """Return a tensor of this shape with arbitrary content."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


@dataclass(frozen=True, slots=True)
class MicrobatchData:
    """One microbatch as a rank has it.

    `fields`: the tensors that the loader gave this rank, by name. `weight`: what the microbatch's
    loss, a sum over its tokens or samples, counts in the step's, such as one by the number of
    label tokens of the whole step. `hidden`: the tensor between any two stages.
    """

    fields: Mapping[str, Tensor]
    weight: float
    hidden: TensorSpec


# A microbatch of which this rank runs nothing.
ELSEWHERE = MicrobatchData({}, 0.0, TensorSpec(()))


@dataclass(frozen=True, slots=True)
class StepData:
    """The microbatches of one step, in the program's numbering.

    `input_gradient`: whether the gradient of each stage's input is wanted by anything before it,
    and at the end, of the last stage's output: one more than there are stages. `edges`: the size of
    what the program's edges carry, where it is not that of hidden states. `precision`: the same for
    the precision of what the barriers of these names bring. `training`: whether there are backward
    passes; without, no part adds to a gradient. `generated`: the microbatches that this rank's
    generator makes a loss of, each with what that counts in the step's.
    """

    microbatches: tuple[MicrobatchData, ...]
    input_gradient: tuple[bool, ...]
    edges: Mapping[Value, TensorSpec] = field(default_factory=dict)
    precision: Mapping[str, torch.dtype] = field(default_factory=dict)
    training: bool = True
    generated: Mapping[int, float] = field(default_factory=dict)

    def spec(self, value: Value) -> TensorSpec:
        """Return the size of a value that one rank sends to another, or that a barrier brings."""
        hidden = self.edges.get(value) or self.microbatches[value.microbatch].hidden
        dtype = self.precision.get(value.name)
        return hidden if dtype is None else replace(hidden, dtype=dtype)
