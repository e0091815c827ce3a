"""Clip gradients by their norm over the whole model, of which each rank has a part."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    *,
    pipeline: dist.ProcessGroup,
    sharding: Sequence[dist.ProcessGroup] = (),
    shared: Iterable[nn.Parameter] = (),
) -> Tensor:
    """Scale all gradients so that their common norm is at most `max_norm`; return the norm before.

    `pipeline`: the ranks that hold the other stages. `sharding`: groups over which FSDP2 shards
    parameters. `shared`: parameters that another pipeline rank holds too, and counts. A parameter
    that several stages of this rank use is counted once. Nothing waits for the result on CUDA.
    """
    unique = {id(p): p for p in parameters if p.grad is not None}
    counted_elsewhere = {id(p) for p in shared}
    device = next((p.device for p in unique.values()), torch.device("cpu"))
    whole, sharded = torch.zeros((), device=device), torch.zeros((), device=device)
    gradients: list[Tensor] = []
    for number, parameter in unique.items():
        gradient = parameter.grad
        assert gradient is not None
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        gradients.append(local)
        if number in counted_elsewhere:
            continue
        square = local.detach().float().pow(2).sum()
        if isinstance(gradient, DTensor):
            sharded = sharded + square
        else:
            whole = whole + square
    for group in sharding:
        dist.all_reduce(sharded, group=group)
    total = whole + sharded
    dist.all_reduce(total, group=pipeline)
    norm = total.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for local in gradients:
        local.mul_(factor.to(local.dtype))
    return norm
