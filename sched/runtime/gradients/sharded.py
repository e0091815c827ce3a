"""Wrappers of modules: FSDP2 is driven by its public calls, DDP is refused."""

from collections.abc import Iterator, Mapping

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def is_sharded(module: nn.Module) -> bool:
    """Return whether FSDP2 (`fully_shard`) is applied to a module or a part of it."""
    return any(True for _ in _sharded(module))


def _sharded(module: nn.Module) -> Iterator[FSDPModule]:
    return (part for part in module.modules() if isinstance(part, FSDPModule))


def parameters_of_fsdp(module: nn.Module, lanes: dist.ProcessGroup | None) -> frozenset[int]:
    """Return the `id` of the parameters of a module whose gradients FSDP2 sums.

    What it does not wrap, and what tensor parallelism alone divides over `lanes`, is summed as in
    any other module. Call it while parameters are sharded, as outside of passes they are.
    """
    if not is_sharded(module):
        return frozenset()
    own = None if lanes is None else frozenset(dist.get_process_group_ranks(lanes))
    return frozenset(id(p) for p in module.parameters() if _mesh_ranks(p) not in (None, own))


def sharded_over(modules: Mapping[int, nn.Module], ranks: frozenset[int]) -> frozenset[int]:
    """Return the `id` of parameters in FSDP2's modules that only these processes divide."""
    parts = (part for module in modules.values() for part in module.modules())
    every = (p for part in parts if isinstance(part, FSDPModule) for p in part.parameters())
    return frozenset(id(p) for p in every if _mesh_ranks(p) == ranks)


def _mesh_ranks(tensor: Tensor) -> frozenset[int] | None:
    """Return the processes of a DTensor's mesh, None for a plain tensor."""
    if not isinstance(tensor, DTensor):
        return None
    return frozenset(tensor.device_mesh.mesh.flatten().tolist())


def refuse_wrapped(stages: Mapping[int, nn.Module]) -> None:
    """Raise ValueError for a stage that DistributedDataParallel wraps.

    DDP reduces in hooks of one backward per forward; with several microbatches under way, gradients
    are wrong or the job hangs, and nothing says so.
    """
    for stage, module in stages.items():
        if any(isinstance(part, DistributedDataParallel) for part in module.modules()):
            raise ValueError(
                f"stage {stage} is wrapped in DistributedDataParallel, which gives wrong gradients "
                "with several microbatches under way; give the plain module, the pipeline sums "
                "gradients over the mesh's data-parallel ranks"
            )


def begin_step(module: nn.Module) -> None:
    """Tell FSDP2 to keep parameters and gradients whole until the last backward of the step.

    Gradients are summed, not averaged: the microbatches' weights have the whole step's counts.
    """
    for part in _sharded(module):
        part.set_requires_gradient_sync(False, recurse=False)
        part.set_is_last_backward(False)
        part.set_reshard_after_backward(False, recurse=False)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


def last_backward(module: nn.Module) -> None:
    """Tell FSDP2 that the next backward is the step's last of this module: it reduces in it."""
    for part in _sharded(module):
        part.set_requires_gradient_sync(True, recurse=False)
        part.set_is_last_backward(True)
        part.set_reshard_after_backward(True, recurse=False)
