"""The split backward by itself: what it computes once, and leaves alone.

Gradients of what stages may be made of are in test_constructs.
"""

import copy
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import checkpoint

from counterpoise.sched.runtime.stage.deferral import (
    DeferredGradients,
    defer_linear_layers,
    deferring,
)

H = 16


class Block(nn.Module):
    def __init__(self, h: int = H) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Twice(nn.Module):
    """A weight used twice in the stage."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block(self.block(x))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.one, self.two, self.reentrant, self.runs = Block(), Block(), reentrant, 0

    def body(self, x):
        self.runs += 1
        return self.one(x)

    def forward(self, x):
        return self.two(checkpoint(self.body, x, use_reentrant=self.reentrant))


class Product(torch.autograd.Function):
    """A custom function, such as fused kernels; it counts its backwards."""

    seen: ClassVar[list[tuple[bool, ...]]] = []

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        Product.seen.append(tuple(ctx.needs_input_grad))
        return g @ w, g.flatten(0, -2).t() @ x.flatten(0, -2)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.w = nn.Linear(H, H), nn.Linear(H, H), nn.Parameter(torch.eye(H))

    def forward(self, x):
        return self.two(Product.apply(self.one(x), self.w))


def assert_equal(ours: torch.Tensor | None, theirs: torch.Tensor | None) -> None:
    assert ours is not None
    assert theirs is not None
    assert torch.equal(ours, theirs)


def split(module, x, gradient) -> tuple[torch.Tensor | None, int]:
    """Run F, I and W; return the input's gradient, and how many gradients were there after I."""
    pending = DeferredGradients()
    x = x.detach().requires_grad_(x.requires_grad)
    with deferring():
        edge = get_gradient_edge(module(x))
    pending.backward([edge], [gradient])
    early = sum(p.grad is not None for p in module.parameters())
    pending.compute()
    return x.grad, early


def test_split_gives_bit_equal_gradients() -> None:
    torch.manual_seed(0)
    plain = Block()
    ours = copy.deepcopy(plain)
    assert defer_linear_layers(ours) == 4
    x, gradient = torch.randn(2, 5, H, requires_grad=True), torch.randn(2, 5, H)
    expected = x.detach().requires_grad_()
    plain(expected).backward(gradient)
    found, _ = split(ours, x, gradient)
    assert_equal(found, expected.grad)
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        assert_equal(a.grad, b.grad)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_block_is_recomputed_once(reentrant) -> None:
    module = Checkpointed(reentrant)
    defer_linear_layers(module)
    split(module, torch.randn(2, 5, H, requires_grad=True), torch.randn(2, 5, H))
    assert module.runs == 2


def test_a_custom_function_runs_its_backward_once() -> None:
    module = Custom()
    defer_linear_layers(module)
    Product.seen.clear()
    split(module, torch.randn(2, 5, H, requires_grad=True), torch.randn(2, 5, H))
    assert Product.seen == [(True, True)]


@pytest.mark.parametrize("make", [Block, Twice])
def test_hooks_of_every_parameter_fire_once(make) -> None:
    module, tensor_hooks, accumulate_hooks = make(), [], []
    defer_linear_layers(module)
    for name, parameter in module.named_parameters():
        parameter.register_hook(lambda _, name=name: tensor_hooks.append(name))
        parameter.register_post_accumulate_grad_hook(
            lambda _, name=name: accumulate_hooks.append(name)
        )
    split(module, torch.randn(2, 5, H, requires_grad=True), torch.randn(2, 5, H))
    names = sorted(name for name, _ in module.named_parameters())
    assert sorted(tensor_hooks) == sorted(accumulate_hooks) == names


def test_only_the_layers_that_defer_are_left_for_w() -> None:
    module = Block()
    defer_linear_layers(module)
    _, early = split(module, torch.randn(2, 5, H, requires_grad=True), torch.randn(2, 5, H))
    assert early == 4  # weights and biases of the two norms


def test_an_output_whose_gradient_is_none_is_left_out() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(H, H), nn.Linear(H, H)

        def forward(self, x):
            return self.a(x), self.b(x)

    module, pending = Two(), DeferredGradients()
    defer_linear_layers(module)
    with deferring():
        edges = [get_gradient_edge(y) for y in module(torch.randn(3, H))]
    pending.backward(edges[:1], [torch.ones(3, H)])
    pending.compute()
    assert module.a.weight.grad is not None
    assert module.b.weight.grad is None


def test_a_backward_outside_of_passes_is_whole() -> None:
    plain, x = Block(), torch.randn(2, 5, H)
    ours = copy.deepcopy(plain)
    defer_linear_layers(ours)
    with deferring():
        y = ours(x)
    y.sum().backward()
    plain(x).sum().backward()
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        assert_equal(a.grad, b.grad)


def test_a_copy_of_a_split_module_uses_its_own_weights() -> None:
    module = Block()
    defer_linear_layers(module)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    x = torch.randn(1, 2, H)
    assert torch.equal(twin(x), x)
    assert list(twin.state_dict()) == list(Block().state_dict())


def test_autocast_gives_the_gradients_of_a_plain_backward() -> None:
    plain = Block()
    ours = copy.deepcopy(plain)
    defer_linear_layers(ours)
    x, gradient, pending = torch.randn(2, 5, H), torch.randn(2, 5, H), DeferredGradients()
    with torch.autocast("cpu", torch.bfloat16):
        y = plain(x)
        with deferring():
            z = ours(x)
    assert torch.equal(y, z)
    y.backward(gradient)
    pending.backward([get_gradient_edge(z)], [gradient])
    pending.compute()
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert a.grad.dtype == torch.float32
        assert float((a.grad - b.grad).norm() / b.grad.norm()) < 1e-2


def test_a_compiled_stage_is_left_whole() -> None:
    compiled: Any = torch.compile(Block(), backend="aot_eager")
    module = nn.Sequential(nn.Linear(H, H), compiled)
    assert defer_linear_layers(module) == 1


def test_a_weight_that_changes_between_f_and_i_is_an_error() -> None:
    module = nn.Linear(H, H)
    defer_linear_layers(module)
    with deferring():
        edge = get_gradient_edge(module(torch.randn(2, H, requires_grad=True)))
    with torch.no_grad():
        module.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        DeferredGradients().backward([edge], [torch.ones(2, H)])


def test_a_forward_that_somebody_else_replaced_is_left_alone() -> None:
    module = nn.Linear(H, H)
    module.__dict__["forward"] = lambda x: 2 * x
    assert defer_linear_layers(module) == 0
    assert torch.equal(module(torch.ones(2, H)), torch.full((2, H), 2.0))
