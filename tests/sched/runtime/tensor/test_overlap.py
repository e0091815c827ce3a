"""Layers that communicate in chunks compute what torch's do, and leave their collectives time."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

from counterpoise.sched.runtime import OverlappedColwiseParallel, OverlappedRowwiseParallel
from counterpoise.sched.runtime.stage.deferral import DeferredGradients, deferring
from tests.sched.runtime.models import HIDDEN, Block
from tests.sched.runtime.pool import Pool, make_mesh

pytestmark = pytest.mark.slow

WIDTH, INNER, OUT = 12, 16, 10
# Sequences, tokens of a process, and which dimension these are.
SHAPES = (((1, 7, WIDTH), 1), ((8, WIDTH), 0), ((5, 3, WIDTH), 0), ((2, 6, WIDTH), 1))


def layers(has_bias: bool = True) -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict(
        {"up": nn.Linear(WIDTH, INNER, has_bias), "down": nn.Linear(INNER, OUT, has_bias)}
    )


def tp_mesh() -> Any:
    return make_mesh(1, tp=4)["tp"]


def plain(dim: int) -> dict[str, Any]:
    return {
        "up": ColwiseParallel(input_layouts=Shard(dim)),
        "down": RowwiseParallel(output_layouts=Shard(dim)),
    }


def overlapped(chunks: int, dim: int) -> dict[str, Any]:
    return {
        "up": OverlappedColwiseParallel(chunks, dim),
        "down": OverlappedRowwiseParallel(chunks, dim),
    }


def results(module: nn.ModuleDict, rank: int, shape: tuple[int, ...]) -> list[Tensor]:
    """Return the output, and the gradients of input and parameters, whole."""
    torch.manual_seed(5 + rank)
    given = torch.randn(*shape, requires_grad=True)
    found = module["down"](torch.relu(module["up"](given)))
    found.square().sum().backward()
    assert given.grad is not None
    return [found.detach(), given.grad, *_gradients(module)]


def _gradients(module: nn.Module) -> list[Tensor]:
    return [each.grad.full_tensor() for each in module.parameters()]


def compare(rank: int, has_bias: bool) -> dict[tuple[Any, ...], float]:
    """Return the largest difference to torch's styles, by shape and number of chunks."""
    found = {}
    for shape, dim in SHAPES:
        module = layers(has_bias)
        parallelize_module(module, tp_mesh(), plain(dim))
        wanted = results(module, rank, shape)
        for chunks in (1, 3, 8):
            module = layers(has_bias)
            parallelize_module(module, tp_mesh(), overlapped(chunks, dim))
            pairs = zip(results(module, rank, shape), wanted, strict=True)
            scaled = [float((a - b).abs().max() / b.abs().max()) for a, b in pairs]
            found[shape, chunks] = max(scaled)
    return found


def test_without_a_bias_that_torch_divides_one_chunk_is_equal_bit_by_bit(pool: Pool) -> None:
    for found in pool.run(compare, False):
        # Of several sequences the rows have another order in sums over them.
        exact = [found[shape, 1] for shape, dim in SHAPES if dim * shape[0] < 2]
        assert exact == [0.0] * 3
        assert max(found.values()) < 1e-6


def test_chunks_are_equal_but_for_the_order_of_sums(pool: Pool) -> None:
    for found in pool.run(compare, True):
        assert max(found.values()) < 1e-6


def train_in_parts(rank: int) -> list[list[Tensor]]:
    """Return gradients computed in one go, in I and W, of a copy, and with recomputation."""
    module = layers()
    parallelize_module(module, tp_mesh(), overlapped(2, 1))
    torch.manual_seed(5 + rank)
    given = torch.randn(2, 6, WIDTH)

    def run(each: nn.ModuleDict) -> Tensor:
        found: Tensor = each["down"](torch.relu(each["up"](given)))
        return found

    run(module).square().sum().backward()
    found = [_gradients(module)]
    module.zero_grad()
    deferred = DeferredGradients()
    with deferring():
        loss = run(module).square().sum()
    deferred.backward([torch.autograd.graph.get_gradient_edge(loss)], [torch.ones(())])
    assert [each.grad for each in module.parameters()] == [None] * 4
    assert len(deferred.products) == 2
    deferred.compute()
    found.append(_gradients(module))
    module.zero_grad()
    copied = copy.deepcopy(module)
    run(copied).square().sum().backward()
    assert [each.grad for each in module.parameters()] == [None] * 4
    found.append(_gradients(copied))
    checkpoint(run, module, use_reentrant=False).square().sum().backward()
    found.append(_gradients(module))
    return found


def test_weight_gradients_come_in_w_of_copies_and_with_recomputation(pool: Pool) -> None:
    for first, *others in pool.run(train_in_parts):
        for other in others:
            torch.testing.assert_close(other, first, rtol=0, atol=0)


def train_frozen(rank: int) -> tuple[list[bool], torch.dtype]:
    """Train the lower layer's bias alone, under autocast; return which gradients there are."""
    module = layers()
    parallelize_module(module, tp_mesh(), overlapped(2, 1))
    module["up"].weight.requires_grad_(False)
    module["down"].requires_grad_(False)
    torch.manual_seed(rank)
    with torch.autocast("cpu", torch.bfloat16):
        found = module["down"](torch.relu(module["up"](torch.randn(2, 6, WIDTH))))
    found.float().sum().backward()
    return [each.grad is not None for each in module.parameters()], found.dtype


def test_frozen_parameters_have_no_gradient_and_autocast_is_torchs(pool: Pool) -> None:
    assert pool.run(train_frozen) == [([False, True, False, False], torch.bfloat16)] * 4


def whole_block(rank: int, dtype: torch.dtype) -> list[Tensor]:
    """Train a block that takes and gives whole sequences, divided inside and by one process."""
    found = []
    for chunks in (0, 3):
        torch.manual_seed(0)
        block = Block().to(dtype)
        if chunks:
            borders = {
                "up": PrepareModuleInput(
                    input_layouts=Replicate(), desired_input_layouts=Shard(1),
                    use_local_output=True,
                ),
                "down": PrepareModuleOutput(
                    output_layouts=Shard(1), desired_output_layouts=Replicate()
                ),
            }  # fmt: skip
            parallelize_module(block, tp_mesh(), borders)
            parallelize_module(block, tp_mesh(), overlapped(chunks, 1))
        given = torch.randn(2, 12, HIDDEN, dtype=dtype, requires_grad=True)
        result = block(given)
        result.square().sum().backward()
        grads = [each.grad for each in (*block.parameters(), given)]
        grads = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in grads]
        found.append([result.detach(), *grads])
    del rank
    return [a - b for a, b in zip(*found, strict=True)]


def test_a_block_whose_borders_are_whole_equals_one_process(pool: Pool) -> None:
    for differences in pool.run(whole_block, torch.float64):
        assert max(float(each.abs().max()) for each in differences) < 1e-12


def record(rank: int, chunks: int) -> list[list[str]]:
    """Return what a forward and a backward did, in order."""
    del rank
    module = layers()
    parallelize_module(module, tp_mesh(), overlapped(chunks, 1))
    events: list[str] = []

    class Waited:
        """A collective that says when it is waited for."""

        def __init__(self, work: dist.Work) -> None:
            self.work = work

        def wait(self) -> None:
            events.append("wait")
            self.work.wait()

    def said(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            events.append(name)
            return Waited(function(*given, **named))

        return call

    class Products(torch.utils._python_dispatch.TorchDispatchMode):
        """Notes products."""

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function._schema.name in ("aten::mm", "aten::addmm"):
                events.append("product")
            return function(*args, **(kwargs or {}))

    own = {
        name: getattr(dist, name) for name in ("all_gather_into_tensor", "reduce_scatter_tensor")
    }
    dist.all_gather_into_tensor = said("gather", own["all_gather_into_tensor"])
    dist.reduce_scatter_tensor = said("scatter", own["reduce_scatter_tensor"])
    found = []
    try:
        given = torch.randn(1, 6, WIDTH, requires_grad=True)
        with Products():
            inner = module["up"](given)
            found.append([*events])
            events.clear()
            result = module["down"](inner)
            found.append([*events])
            events.clear()
            result.sum().backward()
            found.append([*events])
    finally:
        for name, function in own.items():
            setattr(dist, name, function)
    return found


def test_collectives_are_issued_in_order_and_as_early_as_they_can_be(pool: Pool) -> None:
    for up, down, back in pool.run(record, 3):
        assert up == ["gather"] * 3 + ["wait", "product"] * 3
        assert down == ["product", "scatter"] * 3 + ["wait"] * 3
        # The product of the weight's gradient comes while the input's gradient is on its way.
        assert back == [
            *["gather"] * 3, *["wait", "product"] * 3, "product",
            *["product", "scatter"] * 3, "product", *["wait"] * 3,
        ]  # fmt: skip


def refusals(rank: int) -> list[str]:
    """Return the errors of what cannot be divided."""
    del rank
    tp, whole = tp_mesh(), init_device_mesh("cpu", (2, 2))

    def up(chunks: Any = 2, dim: int = 1) -> nn.Module:
        module = nn.Sequential(nn.Linear(WIDTH, INNER))
        parallelize_module(module, tp, {"0": OverlappedColwiseParallel(chunks, dim)})
        return module

    def down() -> nn.Module:
        module = nn.Sequential(nn.Linear(INNER, OUT))
        parallelize_module(module, tp, {"0": OverlappedRowwiseParallel()})
        return module

    def tries() -> Any:
        yield lambda: up(0)
        yield lambda: parallelize_module(
            nn.Sequential(nn.ReLU()), tp, {"0": OverlappedColwiseParallel()}
        )
        yield lambda: OverlappedColwiseParallel()._apply(nn.Linear(4, 4), whole)
        yield lambda: parallelize_module(nn.Linear(WIDTH, OUT), tp, OverlappedColwiseParallel())
        yield lambda: down()(torch.ones(1, 6, INNER // 4))
        yield lambda: up(dim=2)(torch.ones(1, 6, WIDTH))
        yield lambda: up()(torch.distributed.tensor.zeros(4, 8, WIDTH, device_mesh=tp))

    found = []
    for each in tries():
        with pytest.raises((TypeError, ValueError)) as error:
            each()
        found.append(str(error.value))
    return found


def test_what_cannot_be_divided_is_refused(pool: Pool) -> None:
    for found in pool.run(refusals):
        chunks, kind, mesh, features, tokens, dimension, local = found
        assert chunks.startswith("chunks is 0, allowed are whole numbers from 1")
        assert kind.endswith("divides nn.Linear, got ReLU")
        assert mesh.endswith("needs a mesh of one dimension: give mesh['tp']")
        assert "cannot divide 10 features of Linear" in features
        assert tokens.startswith("6 tokens (dimension 1 of (1, 6, 4)) do not divide by 4 processes")
        assert dimension.startswith("sequence_dim=2 has no tokens in a tensor of shape (1, 6, 12)")
        assert local.startswith("a layer that overlaps takes and gives plain tensors")
