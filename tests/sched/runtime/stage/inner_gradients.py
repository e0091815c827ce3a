"""Forwards of stages that take gradients themselves, rows of test_constructs."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

H = 8
Forward = Callable[["Stage", Tensor], Tensor]


class Stage(nn.Module):
    """Three layers, and a forward that uses them as a case wants."""

    def __init__(self, run: Forward) -> None:
        super().__init__()
        self.a, self.b, self.e = nn.Linear(H, H), nn.Linear(H, H), nn.Linear(H, 1)
        self.run = run

    def energy(self, z: Tensor) -> Tensor:
        return torch.tanh(self.e(torch.tanh(self.a(z)))).sum()

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def forces(s: Stage, x: Tensor) -> Tensor:
    z = leaf(x)
    return s.b(x) + torch.autograd.grad(s.energy(z), z)[0]


def penalty(s: Stage, x: Tensor) -> Tensor:
    z = leaf(x)
    return s.b(x) + torch.autograd.grad(s.energy(z), z, create_graph=True)[0]


def through(s: Stage, x: Tensor) -> Tensor:
    z = x if x.requires_grad else leaf(x)
    return s.a(z) + torch.autograd.grad(s.energy(z), z, create_graph=True)[0]


def third_order(s: Stage, x: Tensor) -> Tensor:
    z = leaf(x)
    (once,) = torch.autograd.grad(s.energy(z), z, create_graph=True)
    (twice,) = torch.autograd.grad(once.square().sum(), z, create_graph=True)
    return s.b(x) + twice


def inner_step(s: Stage, x: Tensor) -> Tensor:
    """A step of training inside of the forward, which is differentiated."""
    (step,) = torch.autograd.grad(s.energy(leaf(x)), s.a.weight, create_graph=True)
    return F.linear(s.b(x), s.a.weight - 0.1 * step)


def inner_step_first_order(s: Stage, x: Tensor) -> Tensor:
    wanted = [s.a.weight, s.e.bias]
    weight, bias = torch.autograd.grad(s.energy(leaf(x)), wanted, allow_unused=True)
    return F.linear(s.b(x), s.a.weight - 0.1 * weight) + bias


def own_backward(s: Stage, x: Tensor) -> Tensor:
    (0.1 * s.energy(leaf(x))).backward()
    return s.b(x)


def hessian(s: Stage, x: Tensor) -> Tensor:
    found: Tensor = torch.autograd.functional.hessian(
        s.energy, leaf(x[0]), create_graph=True, vectorize=True
    )
    return s.b(x) @ found


def jacobian(s: Stage, x: Tensor) -> Tensor:
    found: Tensor = torch.autograd.functional.jacobian(s.a, leaf(x[0]), create_graph=True)
    return s.b(x) @ found


def vmapped(s: Stage, x: Tensor) -> Tensor:
    return s.b(torch.vmap(s.a)(x))


def vmapped_gradient(s: Stage, x: Tensor) -> Tensor:
    found: Tensor = torch.vmap(torch.func.grad(s.energy))(s.b(x))
    return found


def forward_mode(s: Stage, x: Tensor) -> Tensor:
    found: Any = torch.func.jvp(s.a, (s.b(x),), (torch.ones_like(x),))
    return sum(found)


def dual_numbers(s: Stage, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(s.a(forward_ad.make_dual(s.b(x), torch.ones_like(x))))
    return found.primal + found.tangent


def functional(s: Stage, x: Tensor) -> Tensor:
    found: Tensor = torch.func.functional_call(s.a, {"weight": 2 * s.b.weight}, (s.b(x),))
    return found


def shared(s: Stage, x: Tensor) -> Tensor:
    return F.linear(s.a(s.b(s.a(x))), s.b.weight)


def equilibrium(s: Stage, x: Tensor) -> Tensor:
    """A fixed point, whose hook goes through the layer again in the backward."""
    z = s.a(torch.tanh(x))
    at = leaf(z)
    again = torch.tanh(s.a(at))
    z.register_hook(lambda g: g + torch.autograd.grad(again, at, g, retain_graph=True)[0])
    return s.b(z)


@torch.compile(backend="aot_eager")
def compiled(s: Stage, x: Tensor) -> Tensor:
    return s.b(torch.tanh(s.a(x)))


def offloaded(s: Stage, x: Tensor) -> Tensor:
    with save_on_cpu():
        return s.b(torch.tanh(s.a(x)))


class Reversible(torch.autograd.Function):
    """Runs a layer in the forward without a graph, and again in the backward."""

    @staticmethod
    def forward(ctx: Any, layer: nn.Linear, keep: bool, x: Tensor, *_: Tensor) -> Tensor:
        ctx.layer, ctx.x = layer, leaf(x)
        with torch.enable_grad():
            ctx.kept = torch.tanh(layer(ctx.x)) if keep else None
        with torch.no_grad():
            return torch.tanh(layer(x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            y = torch.tanh(ctx.layer(ctx.x)) if ctx.kept is None else ctx.kept
        return (None, None, *torch.autograd.grad(y, (ctx.x, *ctx.layer.parameters()), gradient))


def reversible(s: Stage, x: Tensor, keep: bool = False) -> Tensor:
    return s.b(Reversible.apply(s.a, keep, x, *s.a.parameters()))


def reversible_kept(s: Stage, x: Tensor) -> Tensor:
    return reversible(s, x, keep=True)


def checkpointed(run: Forward, reentrant: bool = False) -> Forward:
    def found(s: Stage, x: Tensor) -> Tensor:
        return s.b(checkpoint(run, s, s.b(x), use_reentrant=reentrant))

    found.__name__ = f"{run.__name__} in a {'reentrant ' * reentrant}checkpoint"
    return found


FORWARDS: tuple[Forward, ...] = (
    forces, penalty, through, third_order, inner_step, inner_step_first_order, own_backward,
    hessian, jacobian, vmapped, vmapped_gradient, forward_mode, dual_numbers, functional, shared,
    equilibrium, compiled, offloaded, reversible, reversible_kept, checkpointed(penalty),
    checkpointed(forces), checkpointed(inner_step_first_order), checkpointed(own_backward),
    checkpointed(vmapped), checkpointed(reversible_kept), checkpointed(vmapped, reentrant=True),
    checkpointed(reversible, reentrant=True), checkpointed(shared, reentrant=True),
)  # fmt: skip
