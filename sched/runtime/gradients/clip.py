"""Clip gradients by their norm over the whole model, of which each rank has a part."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..links import wait_for


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    *,
    pipeline: dist.ProcessGroup,
    sharding: Sequence[dist.ProcessGroup] = (),
    shared: Iterable[nn.Parameter] = (),
    deadline_s: float = 300.0,
) -> Tensor:
    """Scale all gradients so that their common norm is at most `max_norm`; return the norm before.

    `pipeline`: the ranks that hold the other stages. `sharding`: groups over which FSDP2 shards
    parameters. `shared`: parameters that another pipeline rank holds too, and counts. A parameter
    that several stages of this rank use is counted once. Nothing waits for the result on CUDA.
    Raises RuntimeError if other ranks' parts do not come within the deadline.
    """
    unique = {id(p): p for p in parameters if p.grad is not None}
    counted_elsewhere = {id(p) for p in shared}
    device = next((p.device for p in unique.values()), torch.device("cpu"))
    whole, sharded = torch.zeros((), device=device), torch.zeros((), device=device)
    for number, parameter in unique.items():
        if number in counted_elsewhere:
            continue
        square = _local(parameter).detach().float().pow(2).sum()
        if isinstance(parameter.grad, DTensor):
            sharded = sharded + square
        else:
            whole = whole + square
    for group in sharding:
        _add_up(sharded, group, deadline_s)
    total = whole + sharded
    _add_up(total, pipeline, deadline_s)
    norm = total.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for local in map(_local, unique.values()):
        local.mul_(factor.to(local.dtype))
    return norm


def _local(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of a parameter's gradient."""
    gradient = parameter.grad
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _add_up(tensor: Tensor, group: dist.ProcessGroup, deadline_s: float) -> None:
    """Put the sum over a group's ranks in place of a tensor."""
    wait_for(dist.all_reduce(tensor, group=group, async_op=True), tensor, deadline_s)
