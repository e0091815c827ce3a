"""Call a module as a pass does: with autocast, and kept or recomputed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from ...ir.passes import Pass

NOTHING = nullcontext()


@dataclass(frozen=True, slots=True)
class Calling:
    """The way in which modules are called: `recompute` and `autocast` as in StageOptions."""

    recompute: bool = False
    autocast: torch.dtype | None = None

    def cast(self, near: Tensor) -> AbstractContextManager[Any]:
        """Return the context of autocast on a tensor's device."""
        if self.autocast is None:
            return NOTHING
        return torch.autocast(near.device.type, self.autocast)


def grad_mode(enabled: bool) -> AbstractContextManager[Any]:
    """Return the context in which autograd records or not; most passes need no change."""
    return NOTHING if enabled == torch.is_grad_enabled() else torch.set_grad_enabled(enabled)


def call_module(
    module: Callable[..., Any],
    inputs: Sequence[Tensor],
    extras: Mapping[str, Tensor],
    calling: Calling,
    what: Pass,
) -> Tensor:
    """Return what a module makes of its inputs. Raises TypeError if it is no plain tensor."""
    with calling.cast(inputs[0]):
        if calling.recompute and torch.is_grad_enabled():
            found: Any = checkpoint(partial(module, **extras), *inputs, use_reentrant=False)
        else:
            found = module(*inputs, **extras)
    if not isinstance(found, Tensor):
        raise TypeError(
            f"the module of {what} returned a {type(found).__name__}; return one tensor, such as "
            "the hidden states, and give other stages what they need as fields"
        )
    if isinstance(found, DTensor):
        raise TypeError(
            f"the module of {what} returned a DTensor; end it with a layer that gives whole local "
            "tensors, such as RowwiseParallel() or ColwiseParallel(output_layouts=Replicate())"
        )
    return found
