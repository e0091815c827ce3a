"""Wrappers of modules: FSDP2 is driven by its public calls, DDP is refused."""

from collections.abc import Iterator, Mapping

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel


def is_sharded(module: nn.Module) -> bool:
    """Return whether FSDP2 (`fully_shard`) is applied to a module or a part of it."""
    return any(True for _ in _sharded(module))


def _sharded(module: nn.Module) -> Iterator[FSDPModule]:
    return (part for part in module.modules() if isinstance(part, FSDPModule))


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
