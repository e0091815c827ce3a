"""Split a backward in two: input gradients first (I), linear layers' weight gradients later (W).

Torch's own split cuts the autograd graph between inputs and parameters, and is wrong or fails for
frozen inputs, shared weights, outputs that are views, both modes of checkpointing, and hooks. Here
the graph stays whole. While `deferring` is active, an `nn.Linear` runs as a function whose backward
gives the gradient of its input only and puts its input and its output's gradient on a list; W works
through the list. What is not an `nn.Linear`, or has a weight that is computed from others, gets
its gradient in I: less is split, and nothing is wrong.

The weight is hidden from autograd in the forward, or its hooks would fire in I and again in W.
"""

import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class _Hidden(NamedTuple):
    """A weight and bias in a wrapper that autograd does not look into."""

    weight: Tensor
    bias: Tensor | None


class _Product(NamedTuple):
    """A weight gradient that is still to be computed, from (..., inputs) and (..., outputs)."""

    layer: _Hidden
    inputs: Tensor
    gradient: Tensor


class DeferredGradients:
    """The weight gradients of one microbatch that wait for its W."""

    def __init__(self) -> None:
        self.products: list[_Product] = []

    def compute(self) -> None:
        """Compute all gradients and add them to `.grad`; hooks of a parameter fire once."""
        products, self.products = self.products, []
        # Detached: else the products would keep the graph that I has been through.
        ends = [
            _WeightGradient.apply(  # type: ignore[no-untyped-call]
                *layer, inputs.detach(), gradient.detach()
            )
            for layer, inputs, gradient in products
        ]
        products.clear()
        if ends:
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])


# Where layers put their gradients off to; None outside of split passes. Autograd may run a backward
# on a thread of its own, so this is no thread's variable; only one pass runs at a time.
_active: DeferredGradients | None = None


class deferring:  # noqa: N801 # used as a function, in every pass
    """Put weight gradients off to `into` inside the block; with None, compute them at once.

    F, and the forward that checkpointing repeats in I, must run under the same mode as I itself.
    """

    __slots__ = ("_before", "_into")

    def __init__(self, into: DeferredGradients | None) -> None:
        self._into = into

    def __enter__(self) -> None:
        global _active
        self._before, _active = _active, self._into

    def __exit__(self, *_: object) -> None:
        global _active
        _active = self._before


def defer_linear_layers(module: nn.Module) -> int:
    """Make the linear layers of a module able to defer, and return how many can.

    Compiled modules are left alone: their backward is one graph. State dicts, deep copies and
    hooks of the layers stay as they are.
    """
    count = 0
    for layer in _uncompiled(module):
        if type(layer).forward is nn.Linear.forward:
            # A bound method, so that a deep copy of the layer gets one of its own.
            layer.__dict__["forward"] = types.MethodType(_forward, layer)
            count += 1
    return count


def _uncompiled(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and those below it, except what torch.compile has taken over."""
    if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
        return
    yield module
    for child in module.children():
        yield from _uncompiled(child)


def _forward(self: nn.Linear, inputs: Tensor) -> Tensor:
    """Stand in for `nn.Linear.forward`."""
    weight, bias = self.weight, self.bias
    # A weight made from others (LoRA, parametrizations) must pass its gradient on in I.
    leaves = weight.is_leaf and (bias is None or bias.is_leaf)
    if _active is None or not (torch.is_grad_enabled() and weight.requires_grad and leaves):
        return F.linear(inputs, weight, bias)
    if torch.is_autocast_enabled(inputs.device.type):
        inputs = inputs.to(torch.get_autocast_dtype(inputs.device.type))
    # Without an input that requires a gradient there would be no backward to learn dY from.
    anchor = None
    if not inputs.requires_grad:
        anchor = torch.zeros((), device=inputs.device, requires_grad=True)
    found: Tensor = _DeferredLinear.apply(  # type: ignore[no-untyped-call]
        inputs, anchor, _Hidden(weight, bias)
    )
    return found


class _DeferredLinear(torch.autograd.Function):
    """A linear layer whose weight gradient is put off."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor | None, layer: _Hidden) -> Tensor:
        del anchor
        ctx.save_for_backward(inputs)
        ctx.layer = layer
        weight, bias = layer.weight.to(inputs.dtype), layer.bias
        with torch.autocast(inputs.device.type, enabled=False):
            return F.linear(inputs, weight, None if bias is None else bias.to(inputs.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        (inputs,) = ctx.saved_tensors
        layer: _Hidden = ctx.layer
        pending = _active or DeferredGradients()
        pending.products.append(_Product(layer, inputs, gradient))
        found = None
        if ctx.needs_input_grad[0]:
            found = gradient @ layer.weight.detach().to(gradient.dtype)
        if pending is not _active:
            # Somebody else's backward goes through the stage: there is no W, so compute now.
            with torch.enable_grad():
                pending.compute()
        return found, None, None


class _WeightGradient(torch.autograd.Function):
    """Stands for a layer in W: its gradient reaches `.grad` through autograd, with hooks."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, inputs: Tensor, gradient: Tensor
    ) -> Tensor:
        ctx.tensors = inputs, gradient
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        return weight.new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        inputs, gradient = (t.reshape(-1, t.shape[-1]) for t in ctx.tensors)
        ctx.tensors = None
        weight = bias = None
        if ctx.needs_input_grad[0]:
            weight = (gradient.t() @ inputs).to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            bias = gradient.sum(0).to(ctx.dtypes[1])
        return weight, bias, None, None
