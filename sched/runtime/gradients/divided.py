"""Tensors that are divided over processes (DTensors): by FSDP2, or by `parallelize_module`.

Sums over ranks that hold the same part are sums of local tensors, since all of these ranks divide a
parameter alike. Before that each gradient must be divided as its parameter is: tensor parallelism
may leave a gradient as parts of a sum (a norm between sequence-parallel layers), and another rank,
whose microbatches gave it none, adds zeros to whole values.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process has, in the same memory; all of a plain one."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """Return this process' part of a gradient. Raises ValueError where there is none."""
    if parameter.grad is None:
        raise ValueError("the parameter has no gradient")
    return local_part(parameter.grad)


def settle(parameters: Iterable[nn.Parameter]) -> None:
    """Divide gradients as their parameters are; the processes that these are divided over meet."""
    for parameter in parameters:
        gradient = parameter.grad
        if not isinstance(parameter, DTensor) or not isinstance(gradient, DTensor):
            continue
        if gradient.placements != parameter.placements:
            with torch.no_grad():
                parameter.grad = gradient.redistribute(placements=parameter.placements)


def dividing_groups(parameter: Tensor) -> list[dist.ProcessGroup]:
    """Return the groups of processes that a parameter is divided over, none for a plain one.

    In a dimension of its mesh in which it is replicated every process has all of it.
    """
    if not isinstance(parameter, DTensor):
        return []
    mesh = parameter.device_mesh
    return [
        mesh.get_group(dimension)
        for dimension, placement in enumerate(parameter.placements)
        if not placement.is_replicate() and mesh.size(dimension) > 1
    ]


def likeness(parameter: nn.Parameter) -> str:
    """Return what must be the same on all ranks that have a parameter, in words."""
    kind = "trained" if parameter.requires_grad else "frozen"
    found = f"{kind} {parameter.dtype} of shape {tuple(parameter.shape)}"
    if not isinstance(parameter, DTensor):
        return found
    return f"{found} divided as {', '.join(map(str, parameter.placements))}"
