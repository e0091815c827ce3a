"""Clip gradients by their norm over the whole model, of which each rank has a part."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..links import add_up
from .divided import dividing_groups, gradient_of


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    *,
    pipelines: Sequence[dist.ProcessGroup],
    shared: Iterable[nn.Parameter] = (),
    deadline_s: float = 300.0,
) -> Tensor:
    """Scale all gradients so that their common norm is at most `max_norm`; return the norm before.

    `pipelines`: the ranks that hold the other stages, in each lane of this process. `shared`:
    parameters that another pipeline rank holds too, and counts. What several stages of this rank
    use counts once. So do parts of a divided parameter (FSDP2, tensor parallelism): those of the
    pipeline's own ranks in its sum, others in a sum before that. Nothing waits for the result on
    CUDA. Raises RuntimeError if other ranks' parts do not come within the deadline.
    """
    unique = {id(p): p for p in parameters if p.requires_grad}
    counted_elsewhere = {id(p) for p in shared}
    device = next((p.device for p in unique.values()), torch.device("cpu"))
    zero = torch.zeros((), device=device)
    own_ranks = frozenset(dist.get_process_group_ranks(pipelines[0]))
    # By the groups that add up before the pipeline. Processes of one enter the same ones in one
    # order, so parameters without a gradient count: others may have one.
    squares: dict[tuple[dist.ProcessGroup, ...], Tensor] = {(): zero}
    for number, parameter in unique.items():
        if number not in counted_elsewhere:
            groups = tuple(g for g in dividing_groups(parameter) if not _within(g, own_ranks))
            squares[groups] = squares.get(groups, zero) + _square(parameter, zero)
    for groups, part in squares.items():
        for group in groups:
            add_up(part, [group], deadline_s)
    total = torch.stack([*squares.values()]).sum()
    add_up(total, pipelines, deadline_s)
    norm = total.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in unique.values():
        if parameter.grad is not None:
            local = gradient_of(parameter)
            local.mul_(factor.to(local.dtype))
    return norm


def _square(parameter: nn.Parameter, zero: Tensor) -> Tensor:
    """Return the sum of squares of this rank's part of a gradient."""
    return zero if parameter.grad is None else gradient_of(parameter).float().pow(2).sum()


def _within(group: dist.ProcessGroup, ranks: frozenset[int]) -> bool:
    """Return whether all processes of a group are among these."""
    return ranks.issuperset(dist.get_process_group_ranks(group))
