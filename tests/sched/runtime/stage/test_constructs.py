"""What stages are made of, under every schedule that defers: gradients are those of one process.

A row is a construct that is a part of every stage, a column a schedule with W passes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from counterpoise.sched import schedule, schedules
from tests.sched.runtime.models import (
    HIDDEN,
    WORDS,
    make_batches,
    reference,
    run_program,
    worst_error,
)
from tests.sched.runtime.stage.inner_gradients import FORWARDS, Stage

RANKS, MICROBATCHES = 2, 4


def defers(name: str) -> bool:
    """Return whether a schedule without vocabulary passes has W."""
    kinds = {p.kind for row in schedule(name, ranks=2, microbatches=4).ranks for p in row}
    return "W" in kinds and kinds <= set("FBIW")


DEFERRING = [name for name in (each.name for each in schedules()) if defers(name)]
H = HIDDEN
Run = Callable[[Any, Any], Any]


class Two(nn.Module):
    """Two layers, other parts by name, and a forward that uses them as a row wants."""

    def __init__(self, run: Run, **parts: nn.Module) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(H, H), nn.Linear(H, H)
        self.register_buffer("scale", torch.rand(H))
        self.frozen = nn.Parameter(torch.rand(H), requires_grad=False)
        self.w = nn.Parameter(torch.randn(H, H) / H)
        for name, part in parts.items():
            self.add_module(name, part)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return x + self.run(self, x)


def hooked(hook: Callable[[Any], object], run: Run | None = None) -> Callable[[], nn.Module]:
    """Return what makes a stage with hooks."""

    def made() -> nn.Module:
        stage = Two(run or (lambda s, x: s.b(torch.tanh(s.a(x)) + s.b(x))))
        hook(stage)
        return stage

    return made


def of(run: Run, **parts: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Two(run, **{name: part() for name, part in parts.items()})


class Scaled(torch.autograd.Function):
    """Has a non-differentiable output, an input that gets no gradient, and looks who wants one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, *_: Any) -> Any:
        ctx.save_for_backward(x, w)
        found = (x @ w).sum(-1).argmax()
        ctx.mark_non_differentiable(found)
        return x @ w.t(), found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        wants = ctx.needs_input_grad
        return (
            gradient @ w if wants[0] else None,
            gradient.t() @ x if wants[1] else None,
            None,
            None,
        )


class OfItsOwn(torch.autograd.Function):
    """Runs a layer again in its backward, and leaves its gradients to autograd there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Linear) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x)
        return layer(x).detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            ctx.layer(x).backward(gradient)
        return x.grad, None


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).t()


def parametrized() -> nn.Module:
    layer = nn.Linear(H, H)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


def cached(s: Any, x: Tensor) -> Tensor:
    with parametrize.cached():
        return s.part(s.part(x))


def hook_after_use(s: Any, x: Tensor) -> Tensor:
    """The weight gets its hook when the layer was called already."""
    y = s.a(x)
    handle = s.a.weight.register_hook(lambda g: g.clamp(-0.05, 0.05))
    s._handles = [handle]
    z = F.linear(y, s.a.weight)
    z.register_hook(lambda g: g)
    return z


def clamp_gradients(s: Any) -> None:
    for p in (s.a.weight, s.b.bias):
        p.register_hook(lambda g: g.clamp(-0.05, 0.05))


def clamp(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-0.05, 0.05)


def clamp_accumulated(s: Any) -> None:
    for p in (s.a.weight, s.b.bias):
        p.register_post_accumulate_grad_hook(clamp)


def change_backward(s: Any) -> None:
    s.a.register_full_backward_hook(lambda _, given, __: (given[0] * 2,))
    s.b.register_full_backward_pre_hook(lambda _, g: (g[0].clamp(-0.05, 0.05),))


def change_forward(s: Any) -> None:
    s.a.register_forward_pre_hook(lambda _, given: (given[0] * 2,))
    s.b.register_forward_hook(lambda _, __, out: torch.tanh(out))


def all_hooks(s: Any) -> None:
    clamp_gradients(s)
    change_forward(s)


def kept_output(s: Any, x: Tensor) -> Tensor:
    y = s.a(x)
    y.register_hook(lambda g: g * 3)
    y.retain_grad()
    return s.b(y)


def in_place(s: Any, x: Tensor) -> Tensor:
    y = s.a(x)
    y += s.b(x).add_(1)
    return y.mul_(s.scale).relu_()


def in_place_of_rows(s: Any, x: Tensor) -> Tensor:
    """Outputs of three dimensions, one and none by one, changed in place."""
    y = torch.tanh_(s.a(x[None].expand(2, -1, -1)))
    z = s.a(s.b(x[0]).sigmoid_()[None, None])
    z[0, 0] += 1
    return (y + z).sum(0)


def strided(s: Any, x: Tensor) -> Tensor:
    return s.a(x.t().contiguous().t()[None].transpose(0, 1)).squeeze(1) + s.b(x.flip(0)[::1])


def tied(s: Any, x: Tensor) -> Tensor:
    return s.a(s.part(x))


def tie() -> nn.Module:
    stage: Any = Two(tied, part=nn.Linear(H, H))
    stage.part.weight = stage.a.weight
    return stage


def penalised(s: Any, x: Tensor) -> Tensor:
    return s.a(x) * s.a.weight.square().mean() + F.linear(x, s.b.weight) * s.b(x).mean()


def partly_detached(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        kept = s.a(x)
    return s.b(s.a(x).detach()) + s.a(kept)


def checkpointed(reentrant: bool) -> Run:
    def run(s: Any, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return s.b(F.relu_(s.a(checkpoint(s.b, x, use_reentrant=reentrant))))

        found: Tensor = checkpoint(inner, x, use_reentrant=reentrant)
        return found

    run.__name__ = f"checkpoint in a checkpoint, reentrant {reentrant}"
    return run


def attention(s: Any, x: Tensor) -> Tensor:
    found: Tensor = s.part(x[None], x[None], x[None], need_weights=False)[0][0]
    return found


def jacobians(s: Any, x: Tensor) -> Tensor:
    return s.b(x) @ torch.func.jacrev(s.a)(x[0]) @ torch.func.jacfwd(s.b)(x[0])


def partly_frozen() -> nn.Module:
    stage: Any = Two(lambda s, x: s.b(s.a(x)) * s.scale * s.frozen)
    stage.a.weight.requires_grad_(False)
    stage.b.bias.requires_grad_(False)
    return stage


ROWS: dict[str, Callable[[], nn.Module]] = {
    **{f"inner: {run.__name__}": partial(Stage, run) for run in FORWARDS},
    "tensor hooks": hooked(lambda _: None, kept_output),
    "gradient hooks": hooked(clamp_gradients),
    "hooks after accumulation": hooked(clamp_accumulated),
    "a hook after use": of(hook_after_use),
    "module backward hooks": hooked(change_backward),
    "module forward hooks": hooked(change_forward),
    "all hooks in a checkpoint": hooked(
        all_hooks, checkpointed(False)
    ),
    "checkpoint": of(checkpointed(False)),
    "reentrant checkpoint": of(checkpointed(True)),
    "function of several outputs": of(
        lambda s, x: s.b(Scaled.apply(s.a(x), s.w, True, torch.ones(1))[0])
    ),
    "function of a frozen input": of(
        lambda s, x: s.b(Scaled.apply(s.a(x).detach(), s.w, True, torch.ones(1))[0])
    ),
    "function with its own backward": of(lambda s, x: s.b(OfItsOwn.apply(s.a(x), s.a))),
    "in place": of(in_place),
    "in place, of other dimensions": of(in_place_of_rows),
    "strided inputs": of(strided),
    "tied weights": tie,
    "a weight in other terms": of(penalised),
    "a weight made of others": of(
        lambda s, x: s.b(F.linear(x, s.a.weight + s.w @ s.w.t(), s.a.bias))
    ),
    "partly detached": of(partly_detached),
    "used twice": of(lambda s, x: s.a(s.b(s.a(x)) + s.b(x))),
    "partly frozen": partly_frozen,
    "without bias": of(lambda s, x: s.part(s.a(x)), part=lambda: nn.Linear(H, H, bias=False)),
    "functional": of(lambda s, x: F.linear(s.a(x), s.w.t()) @ s.w),
    "weight_norm": of(
        lambda s, x: s.a(s.part(x)), part=lambda: parametrizations.weight_norm(nn.Linear(H, H))
    ),
    "spectral_norm": of(
        lambda s, x: s.a(s.part(x)), part=lambda: parametrizations.spectral_norm(nn.Linear(H, H))
    ),
    "orthogonal": of(
        lambda s, x: s.a(s.part(x)), part=lambda: parametrizations.orthogonal(nn.Linear(H, H))
    ),
    "older weight_norm": of(lambda s, x: s.part(s.a(x)), part=lambda: weight_norm(nn.Linear(H, H))),
    "older spectral_norm": of(
        lambda s, x: s.part(s.a(x)), part=lambda: spectral_norm(nn.Linear(H, H))
    ),
    "parametrized": of(lambda s, x: s.a(s.part(x)), part=parametrized),
    "parametrized, cached": of(cached, part=parametrized),
    "convolution": of(
        lambda s, x: s.a(s.part(x.t()[None])[0].t()), part=lambda: nn.Conv1d(H, H, 3, padding=1)
    ),
    "embedding": of(
        lambda s, x: s.a(x) + s.part(torch.arange(len(x))), part=lambda: nn.Embedding(9, H)
    ),
    "norms": of(
        lambda s, x: s.b(s.other(s.a(s.part(x)))), part=lambda: nn.LayerNorm(H),
        other=lambda: nn.RMSNorm(H),
    ),
    "batch norm": of(
        lambda s, x: s.b(s.part(torch.cat([s.a(x), x]))[: len(x)]), part=lambda: nn.BatchNorm1d(H),
    ),
    "attention": of(attention, part=lambda: nn.MultiheadAttention(H, 2, batch_first=True)),
    "transformer layer": of(
        lambda s, x: s.a(s.part(x[None])[0]),
        part=lambda: nn.TransformerEncoderLayer(H, 2, 16, dropout=0.0, batch_first=True),
    ),
    "recurrent": of(lambda s, x: s.a(s.part(x)[0]), part=lambda: nn.GRU(H, H)),
    "bilinear": of(lambda s, x: s.a(s.part(x, s.b(x))), part=lambda: nn.Bilinear(H, H, H)),
    "jacobians": of(jacobians),
}  # fmt: skip
OFTEN = ("zb-h1", "zbv")


def make_stages(count: int, make: Callable[[], nn.Module]) -> list[nn.Module]:
    torch.manual_seed(0)
    parts: list[list[nn.Module]] = [[make()] for _ in range(count)]
    parts[0].insert(0, nn.Embedding(WORDS, H))
    parts[-1].append(nn.Linear(H, WORDS))
    return [nn.Sequential(*each).double() for each in parts]


def compare(name: str, make: Callable[[int], list[Any]], **options: Any) -> float:
    """Return the largest error of a gradient to one process; buffers must be the same."""
    program = schedule(name, ranks=RANKS, microbatches=MICROBATCHES)
    stages, theirs = make(program.stages), make(program.stages)
    batches = make_batches(MICROBATCHES, equal=False)
    reference(theirs, batches)
    run_program(program, stages, batches, **options)
    for ours, other in zip(stages, theirs, strict=True):
        for (key, found), wanted in zip(ours.named_buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(found, wanted, msg=key)
    return worst_error(stages, theirs)


@pytest.mark.parametrize(
    "name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.long) for n in DEFERRING]
)
@pytest.mark.parametrize("row", ROWS)
def test_gradients_are_those_of_one_process(row: str, name: str) -> None:
    assert compare(name, lambda count: make_stages(count, ROWS[row])) < 1e-9


@pytest.mark.parametrize("name", DEFERRING)
def test_what_stages_share_gets_the_gradients_of_all(name: str) -> None:
    def make(count: int) -> list[Any]:
        stages: list[Any] = make_stages(count, lambda: Two(lambda s, x: s.b(s.a(x))))
        stages[-1][-1].weight = stages[0][0].weight
        stages[-1][0].a = stages[0][1].a
        stages[1][0].b.weight = stages[0][1].b.weight
        return stages

    assert compare(name, make) < 1e-9


@pytest.mark.parametrize("name", DEFERRING)
def test_recomputed_stages_give_the_gradients_of_one_process(name: str) -> None:
    row = ROWS["inner: penalty"]
    assert compare(name, lambda count: make_stages(count, row), recompute=True) < 1e-9


def test_all_schedules_that_defer_are_in_the_table() -> None:
    assert {"zb-h1", "zb-h2", "zbv", "v-half", "dualpipev"} <= set(DEFERRING)
