"""Linear layers of sequence parallelism that communicate in chunks, beside their own products.

A column-wise layer gathers its input along the sequence, a row-wise one scatters the sum of its
output (Korthikanti et al. 2022). Here both are cut along the tokens: while a chunk is multiplied,
the next one is on its way, so that of the collective only a chunk is waited for (DistTrain, section
7, StepCCL). All collectives of a layer are issued at once and in the order of their chunks, and
the backend has a queue of its own for them: gloo a thread, NCCL a stream.

The rows of a chunk are those of all ranks. Where a result has them in the order of the sequence,
each chunk is copied to its places when it is there, beside the collectives of the chunks after it
(the layout remap of the paper's figure 14). Products of weight gradients need no such order, since
inputs and gradients have the same one; they are computed while the input's gradients are on their
way.
"""

import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ParallelStyle

from ..stage.deferral import can_defer, gradients_now_or_later, parameter_gradients
from .chunks import SequenceRows


class _Overlapped(ParallelStyle):
    """What both styles do: divide the layer's parameters, and stand in for its forward."""

    function: type[torch.autograd.Function]
    divided: tuple[Placement, Placement]  # of weight and bias

    def __init__(self, chunks: int = 4, sequence_dim: int = 1) -> None:
        super().__init__()
        if type(chunks) is not int or chunks < 1:
            raise ValueError(f"chunks is {chunks!r}, allowed are whole numbers from 1")
        self.chunks = chunks
        self.sequence_dim = sequence_dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        name = type(self).__name__
        if type(module) is not nn.Linear:
            raise TypeError(f"{name} divides nn.Linear, got {type(module).__qualname__}")
        if device_mesh.ndim != 1:
            raise ValueError(f"{name} needs a mesh of one dimension: give mesh['tp']")

        def divide(_: str, layer: nn.Module, mesh: DeviceMesh) -> None:
            for parameter_name, placement in zip(("weight", "bias"), self.divided, strict=True):
                whole = getattr(layer, parameter_name)
                if whole is None:
                    continue
                size = whole.shape[placement.dim] if isinstance(placement, Shard) else 0
                if size % mesh.size():
                    raise ValueError(
                        f"{name} cannot divide {size} features of {layer} over {mesh.size()} "
                        "processes: they have to divide evenly"
                    )
                part = distribute_tensor(whole, mesh, [placement], src_data_rank=self.src_data_rank)
                layer.register_parameter(parameter_name, nn.Parameter(part, whole.requires_grad))

        distribute_module(module, device_mesh, divide)
        function, chunks, dim = self.function, self.chunks, self.sequence_dim

        # A bound method, so that a deep copy of the layer gets one of its own.
        def forward(layer: nn.Linear, inputs: Tensor) -> Tensor:
            if torch.is_autocast_enabled(inputs.device.type):
                inputs = inputs.to(torch.get_autocast_dtype(inputs.device.type))
            may_defer = can_defer(layer.weight, layer.bias)
            out: Tensor = function.apply(inputs, layer.weight, layer.bias, dim, chunks, may_defer)  # type: ignore[no-untyped-call]
            return out

        module.__dict__["forward"] = types.MethodType(forward, module)
        return module


class _GatheredLinear(torch.autograd.Function):
    """Gather along the sequence, and multiply."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: DTensor, bias: DTensor | None, dim: int, chunks: int,
        may_defer: bool,
    ) -> Tensor:  # fmt: skip
        rows = SequenceRows.from_part(inputs, weight.device_mesh, dim, chunks, 1)
        local_weight = _local(weight, inputs)
        local_bias = None if bias is None else _local(bias, inputs)
        with torch.autocast(inputs.device.type, enabled=False):
            gathered, output = rows.gather_product(inputs, local_weight.t(), local_bias)
        ctx.save_for_backward(gathered, weight)
        ctx.rows, ctx.layer, ctx.may_defer = rows, (weight, bias), may_defer
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gathered, weight = ctx.saved_tensors
        if not ctx.needs_input_grad[0]:
            by_chunk, wait = ctx.rows.by_chunk(gradient), None
        else:
            by_chunk, wait = ctx.rows.scatter_product(gradient, _local(weight, gradient))
        # While the sums are on their way.
        later = _parameter_gradients(ctx, gathered, Replicate(), by_chunk, Shard(1))
        return None if wait is None else wait(), *later, None, None, None


class _ScatteredLinear(torch.autograd.Function):
    """Multiply, and scatter the sum along the sequence."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: DTensor, bias: DTensor | None, dim: int, chunks: int,
        may_defer: bool,
    ) -> Tensor:  # fmt: skip
        mesh = weight.device_mesh
        rows = SequenceRows.from_part(inputs, mesh, dim, chunks, mesh.size())
        with torch.autocast(inputs.device.type, enabled=False):
            _, wait = rows.scatter_product(inputs, _local(weight, inputs).t())
            output = wait()
            if bias is not None:
                output = output + _local(bias, output)
        ctx.save_for_backward(inputs, weight)
        ctx.rows, ctx.layer, ctx.may_defer = rows, (weight, bias), may_defer
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        gathered, input_gradient = ctx.rows.gather_product(gradient, _local(weight, gradient))
        by_chunk = ctx.rows.by_chunk(inputs)
        later = _parameter_gradients(ctx, by_chunk, Shard(1), gathered, Replicate())
        return input_gradient, *later, None, None, None


def _local(parameter: DTensor, like: Tensor) -> Tensor:
    return parameter.to_local().to(like.dtype)


def _parameter_gradients(
    ctx: Any, inputs: Tensor, of_inputs: Placement, gradient: Tensor, of_gradient: Placement
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of weight and bias, divided as they are; (rows, features) each."""
    if not any(ctx.needs_input_grad[1:3]):
        return None, None
    mesh = ctx.layer[0].device_mesh
    compute = gradients_now_or_later if ctx.may_defer else parameter_gradients
    return compute(
        ctx.layer,
        DTensor.from_local(inputs, mesh, [of_inputs], run_check=False),
        DTensor.from_local(gradient, mesh, [of_gradient], run_check=False),
        ctx.needs_input_grad[1:3],
    )


class OverlappedColwiseParallel(_Overlapped):
    """Column-wise division of an nn.Linear that gathers its input beside the product.

    In place of `ColwiseParallel(input_layouts=Shard(1))`: the layer takes this process' tokens of
    all features, a plain tensor (batch, tokens / n, features), and returns all tokens of its own
    features, (batch, tokens, outputs / n). Tokens and outputs have to divide by n evenly.

    chunks        in so many the input is gathered; 1: nothing is overlapped
    sequence_dim  the dimension of the tokens

    Second derivatives are refused by torch. See DistTrain, section 7 (StepCCL).
    """

    function = _GatheredLinear
    divided = (Shard(0), Shard(0))


class OverlappedRowwiseParallel(_Overlapped):
    """Row-wise division of an nn.Linear that scatters the sum of its output beside the product.

    In place of `RowwiseParallel(output_layouts=Shard(1))`: the layer takes all tokens of this
    process' features, a plain tensor (batch, tokens, features / n), and returns its own tokens,
    (batch, tokens / n, outputs). Tokens and features have to divide by n evenly.

    chunks        in so many the sum is scattered; 1: nothing is overlapped
    sequence_dim  the dimension of the tokens
    """

    function = _ScatteredLinear
    divided = (Shard(1), Replicate())
