"""Split a backward in two: input gradients first (I), linear layers' weight gradients later (W).

Torch's own split cuts the autograd graph between inputs and parameters, and is wrong or fails for
frozen inputs, shared weights, outputs that are views, both modes of checkpointing, and hooks. Here
the graph stays whole. While `deferring` is active, an `nn.Linear` runs as a function whose
backward, if I is what runs it, gives the gradient of its input only and puts its input and its
output's gradient on a list; W works through the list.

In all other cases the layer gives all its gradients at once: less is split, and nothing is wrong.
So it is for gradients that a stage takes by itself, inside its forward, a block that is recomputed,
or a hook, which belong to another run of autograd than I's; with `create_graph`, whose result must
have a graph; and where a parameter has hooks by then, which would fire in I and in W. Under
`torch.func` and forward-mode differentiation, inside of compiled functions, and where the weight is
computed from others, the layer is torch's own.
"""

import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import GradientEdge


class _Product(NamedTuple):
    """A weight gradient that is still to be computed, from (..., inputs) and (..., outputs)."""

    layer: tuple[Tensor, Tensor | None]
    inputs: Tensor
    gradient: Tensor


class DeferredGradients:
    """The weight gradients of one microbatch: I puts them off, W computes them."""

    def __init__(self) -> None:
        self.products: list[_Product] = []
        self._run: int | None = None

    def backward(self, outputs: Sequence[GradientEdge], gradients: Sequence[Tensor]) -> None:
        """Run I from the edges of a graph that was made while `deferring`."""
        # A root runs before all else that I runs.
        marks = [edge.node.register_prehook(self._begin) for edge in outputs]
        try:
            with deferring(self):
                torch.autograd.backward(outputs, gradients)
        finally:
            for mark in marks:
                mark.remove()

    def is_running(self) -> bool:
        """Return whether the run of autograd that asks is I, and not one that a stage started."""
        return self._run is not None and self._run == torch._C._current_graph_task_id()

    def _begin(self, gradients: tuple[Tensor, ...]) -> None:
        del gradients
        if self._run is None:
            self._run = torch._C._current_graph_task_id()

    def compute(self) -> None:
        """Run W: compute all gradients and add them to `.grad`."""
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
    """Make linear layers able to put weight gradients off inside the block.

    F runs under it, and so does the forward that checkpointing repeats in I: it must save as many
    tensors as F.
    """

    __slots__ = ("_before", "_into")

    def __init__(self, into: DeferredGradients | None = None) -> None:
        # In F nothing is put off, whatever backwards the stage starts: no run is that of I.
        self._into = into or DeferredGradients()

    def __enter__(self) -> None:
        global _active
        self._before, _active = _active, self._into

    def __exit__(self, *_: object) -> None:
        global _active
        _active = self._before


def defer_linear_layers(module: nn.Module) -> int:
    """Make the linear layers of a module able to defer, but compiled ones; return how many can."""
    count = 0
    for layer in _uncompiled(module):
        forward = layer.__dict__.get("forward")
        if forward is not None and getattr(forward, "__func__", None) is not _forward:
            continue  # other code has replaced it
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
    if not can_defer(weight, bias):
        return F.linear(inputs, weight, bias)
    if torch.is_autocast_enabled(inputs.device.type):
        inputs = inputs.to(torch.get_autocast_dtype(inputs.device.type))
    output: Tensor = _DeferredLinear.apply(inputs, weight, bias)  # type: ignore[no-untyped-call]
    return output


def can_defer(weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether a layer's gradients may come later than autograd would bring them."""
    if _active is None or not (torch.is_grad_enabled() and weight.requires_grad):
        return False
    if torch.compiler.is_compiling():
        return False
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    # A weight made from others (LoRA, parametrizations) must pass its gradient on in I.
    return weight.is_leaf and (bias is None or bias.is_leaf)


def _has_hooks(layer: tuple[Tensor, Tensor | None]) -> bool:
    """Return whether a layer's parameters have hooks by now, each of which is to see I's sum."""
    return any(
        p is not None and (p._backward_hooks or p._post_accumulate_grad_hooks) for p in layer
    )


class _DeferredLinear(torch.autograd.Function):
    """A linear layer whose weight gradient can be put off."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        # Not the saved weight, which may be a copy (tensors that wait on the CPU).
        ctx.layer = weight, bias
        with torch.autocast(inputs.device.type, enabled=False):
            output = F.linear(
                inputs, weight.to(inputs.dtype), None if bias is None else bias.to(inputs.dtype)
            )
        # Of some inputs it is a view, which autograd refuses to change in place behind a function.
        return torch.ops.aten._unsafe_view(output, output.shape) if output._is_view() else output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        wants = ctx.needs_input_grad
        input_gradient = gradient @ weight.to(gradient.dtype) if wants[0] else None
        return input_gradient, *gradients_now_or_later(ctx.layer, inputs, gradient, wants[1:])


def gradients_now_or_later(
    layer: tuple[Tensor, Tensor | None], inputs: Tensor, gradient: Tensor, wants: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of a layer's weight and bias, None where W computes them.

    Only for layers of which `can_defer` was true in F, and where F ran under `deferring`.
    """
    at = _active
    is_first_order = at is not None and at.is_running() and not torch.is_grad_enabled()
    if at is not None and is_first_order and not _has_hooks(layer):
        at.products.append(_Product(layer, inputs, gradient))
        return None, None
    return parameter_gradients(layer, inputs, gradient, wants)


def parameter_gradients(
    layer: tuple[Tensor, Tensor | None], inputs: Tensor, gradient: Tensor, wants: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of a layer's weight and bias, where they are wanted."""
    inputs, gradient = (t.reshape(-1, t.shape[-1]) for t in (inputs, gradient))
    weight, bias = layer
    return (
        (gradient.t() @ inputs).to(weight.dtype) if wants[0] else None,
        gradient.sum(0).to(bias.dtype) if wants[1] and bias is not None else None,
    )


class _WeightGradient(torch.autograd.Function):
    """Stands for a layer in W: its gradient reaches `.grad` through autograd."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, inputs: Tensor, gradient: Tensor
    ) -> Tensor:
        ctx.product = _Product((weight, bias), inputs, gradient)
        return weight.new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        product, ctx.product = ctx.product, None
        layer, inputs, gradient = product
        return *parameter_gradients(layer, inputs, gradient, ctx.needs_input_grad), None, None
