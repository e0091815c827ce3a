"""Jobs to fill: a model's layers as kernels, and the cases of the Optimus paper.

Costs are those of `sched.shapes`; here they are cut into kernels. A forward is, in Megatron-LM's
sequence parallelism, all-gather, attention, reduce-scatter, norm, all-gather, MLP, reduce-scatter;
a backward has the same collectives. The image encoder's kernels are its matrix products one by one,
since they are what has to fit into bubbles; the language model's are the stretches between its
collectives. Left out: the vocabulary, and what stands before and after an encoder's layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..shapes import (
    LANGUAGE,
    Amounts,
    Device,
    LayerCost,
    Model,
    ParallelLayout,
    SubModel,
    layer_costs,
    read_model,
)
from .setup import FillSetup, Kernel, KernelLayer, Stack

# Where the language model's attention and MLP share its work: a third and two thirds.
_ATTENTION, _PARTS = 1, 3
_NORM_NS = 20_000


def exposed_ns(device: Device, size: int, ranks: int, product_ns: int, chunks: int = 1) -> int:
    """Return by how much an all-gather or reduce-scatter of `size` bytes lengthens its product.

    0 for one rank. In n chunks the first is waited for; the product takes as long as it does, or
    the other n - 1 and its last part do (DistTrain, section 7; sched/runtime/tensor).

    >>> [exposed_ns(Device(), 50331648, 8, 700_000, count) for count in (1, 2, 4, 8)]
    [137829, 74914, 43457, 27728]
    """
    if ranks == 1:
        return 0
    latency = device.gather_ns(0, ranks)
    whole = device.gather_ns(size, ranks) - latency
    chunk_ns = whole // chunks + latency
    return chunk_ns + max(0, (chunks - 1) * chunk_ns + product_ns // chunks - product_ns)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A layer to cut into kernels: its cost, operations of its products, bytes of a collective."""

    cost: LayerCost
    flops: dict[str, int]
    device: Device
    width: int
    size: int
    chunks: int

    def products(self, compute_ns: int) -> dict[str, int]:
        """Return the time of each matrix product, by its operations; the last has the rest."""
        whole = max(1, sum(self.flops.values()))
        times = {name: compute_ns * flops // whole for name, flops in self.flops.items()}
        return times | {"fc2": times["fc2"] + compute_ns - sum(times.values())}

    def layer(self, part: SubModel) -> KernelLayer:
        """Return the layer in kernels, without those that take no time."""
        cost, beside = self.cost, 4 * self.device.gather_ns(self.size, self.width)
        forward_ns, backward_ns = cost.forward_ns - beside, max(0, cost.backward_ns - beside)
        work, where = self.products(forward_ns), (self.device, self.size, self.width)
        waits = [
            Kernel("collective", "communication", exposed_ns(*where, work[name], self.chunks))
            for name in ("qkv", "proj", "fc1", "fc2")
        ]
        inside = _blocks if part.kind == LANGUAGE else _products
        parts = inside(self, forward_ns, backward_ns)
        rows = []
        for (attention, middle, mlp), syncs in zip(parts, (waits, waits[::-1]), strict=True):
            row = (syncs[0], *attention, syncs[1], *middle, syncs[2], *mlp, syncs[3])
            rows.append(tuple(kernel for kernel in row if kernel.ns))
        return KernelLayer(
            part.name, rows[0], rows[1] if backward_ns else (), cost.activation_bytes,
            cost.input_bytes, part.layers[0].parameters, cost.working_bytes,
        )  # fmt: skip


def _cut(
    part: SubModel, model: Model, device: Device, layout: ParallelLayout, amounts: Amounts,
    chunks: int,
) -> _Cut:  # fmt: skip
    """Return a part's layer. Raises ValueError for a part of different layers."""
    if len(set(part.layers)) > 1:
        raise ValueError(f"{part.name} has layers of different shapes; bubbles take equal ones")
    # Without the vocabulary, and without what an encoder's ends have more.
    alone = replace(part, front=0, back=0, projector=0)
    layout = replace(layout, pp=1, vpp=1, stages=(), spread_vocabulary=True)
    cost = layer_costs(replace(model, parts=(alone,)), device, layout, amounts)[0]
    layer, tokens = part.layers[0], part.tokens(amounts)
    inner = 2 * layer.hidden * layer.active_inner * tokens
    flops = {
        "qkv": 2 * (layer.attention - layer.hidden * layer.value) * tokens,
        "core": layer.attention_flops(part.pairs(amounts)),
        "proj": 2 * layer.hidden * layer.value * tokens,
        "fc1": inner * (layer.matrices - 1),
        "fc2": inner,
    }
    size = layout.activation_bytes * -(-tokens // layout.cp) * layer.hidden
    return _Cut(cost, flops, device, layout.tp, size, chunks)


# What computes between a pass's four collectives: around the first and last block, and in between.
_Blocks = tuple[Sequence[Kernel], Sequence[Kernel], Sequence[Kernel]]


def _blocks(_: _Cut, forward_ns: int, backward_ns: int) -> tuple[_Blocks, _Blocks]:
    """Return a language model's blocks; the norm between two is taken off the second."""

    def halves(first: int, second: int) -> _Blocks:
        norm = min(_NORM_NS, second - 1)
        blocks = Kernel("block", "compute", first), Kernel("block", "compute", second - norm)
        return (blocks[0],), (Kernel("norm", "compute", norm),), (blocks[1],)

    first, last = (ns * _ATTENTION // _PARTS for ns in (forward_ns, backward_ns))
    return halves(first, forward_ns - first), halves(backward_ns - last, last)


def _products(cut: _Cut, forward_ns: int, backward_ns: int) -> tuple[_Blocks, _Blocks]:
    """Return an encoder's matrix products; a backward has two for each."""
    work, twice = cut.products(forward_ns), cut.products(backward_ns)

    def once(*names: str) -> list[Kernel]:
        return [Kernel(name, "compute", work[name], True) for name in names]

    def both(*names: str) -> list[Kernel]:
        return [
            Kernel(f"{name}.{end}", "compute", (twice[name] + odd) // 2, True)
            for name in names
            for end, odd in (("inputs", 0), ("weights", 1))
        ]

    forward = once("qkv", "core", "proj"), (), once("fc1", "fc2")
    return forward, (both("fc2", "fc1"), (), both("proj", "core", "qkv"))


def model_setup(
    model: Model, device: Device, layout: ParallelLayout, amounts: Amounts, chunks: int = 1
) -> FillSetup:
    """Return the job of a model, for all encoder widths that divide the layout's TP.

    `chunks`: in which tensor-parallel collectives run beside their products. The language model's
    collectives between replicas are those of `shapes.time`, its passes too, the vocabulary apart.
    Raises ValueError for a model without encoders, or with layers that differ.
    """
    if not model.encoders:
        raise ValueError(f"{model.name} has no encoder whose work could be hidden; name one")
    widths = [width for width in range(1, layout.tp + 1) if layout.tp % width == 0]
    host = model.language
    cut = _cut(host, model, device, layout, amounts, chunks)

    def encoder(part: SubModel, width: int) -> Stack:
        narrow = _cut(part, model, device, replace(layout, tp=width), amounts, chunks)
        return Stack(narrow.layer(part), len(part.layers), not part.frozen)

    held = cut.cost.parameters * -(-len(host.layers) // layout.pp)
    gather, scatter = (
        device.gather_ns(size * held, layout.replicas, across=True)
        for size in (layout.weight_bytes, layout.gradient_bytes)
    )
    return FillSetup(
        name=model.name, stages=layout.pp, chunks=layout.vpp, microbatches=layout.microbatches,
        tensor=layout.tp, data=layout.replicas, model=Stack(cut.layer(host), len(host.layers)),
        encoders={n: tuple(encoder(part, n) for part in model.encoders) for n in widths},
        recompute=layout.recompute == "all", hop_ns=device.send_ns(cut.cost.output_bytes),
        gather_ns=gather, scatter_ns=scatter, memory_bytes=device.memory_bytes,
        state_bytes=layout.weight_bytes + layout.gradient_bytes,
        optimizer_bytes=layout.optimizer_bytes,
    )  # fmt: skip


def with_encoder_collectives(setup: FillSetup, device: Device | None = None) -> FillSetup:
    """Return a job that counts its encoders' own collectives, on the device's network.

    Parameters are gathered in bf16 and gradients scattered in fp32. A job that has times for them,
    as a measured profile may, is returned as it is.
    """
    if setup.encoder_gather_ns or setup.encoder_scatter_ns:
        return setup
    rate = (device or SET_R_DEVICE).network_bytes_per_s
    gather, scatter = (size * 10**18 // rate for size in (2, 4))
    return replace(setup, encoder_gather_ns=gather, encoder_scatter_ns=scatter)


def fitted_device(permille: int, link_bytes_per_s: int = 350 * 10**9) -> Device:
    """Return an H100 whose kernels all reach this share of 989 TFLOPS: the peak is that share."""
    return Device(
        flops_per_s=989 * 10**9 * permille, efficiency_percent=100, encoder_percent=100,
        link_bytes_per_s=link_bytes_per_s, name="optimus",
    )  # fmt: skip


# Set R: docs/concepts/bubble-filling.md says what is fitted to which table, and what is not met.
SET_R_DEVICE = fitted_device(437)


@dataclass(frozen=True, slots=True)
class Case:
    """A job of the paper: models, GPUs as data x stages x 8, sequences a step, chunks."""

    model: str
    encoders: tuple[str, ...]
    data: int
    stages: int
    batch: int
    chunks: int


# Tables 5 and 7 (by GPUs), 3 and 6. LLAMA's 80 layers do not fill the paper's 4 stages of 6 chunks:
# 5 is a guess.
CASES = {
    "1536": Case("gpt-175b", ("vit-22b",), 24, 8, 1536, 12),
    "2048": Case("gpt-175b", ("vit-22b",), 32, 8, 1536, 12),
    "3072": Case("gpt-175b", ("vit-22b",), 48, 8, 1536, 12),
    "A": Case("llama-70b", ("vit-11b",), 2, 4, 32, 5),
    "B": Case("llama-70b", ("vit-22b",), 4, 4, 64, 5),
    "C": Case("gpt-175b", ("vit-11b",), 4, 8, 128, 12),
    "D": Case("gpt-175b", ("vit-22b",), 8, 8, 256, 12),
    "11+5": Case("gpt-175b", ("vit-11b", "vit-5b"), 8, 8, 256, 12),
    "22+5": Case("gpt-175b", ("vit-22b", "vit-5b"), 8, 8, 256, 12),
    "22+11": Case("gpt-175b", ("vit-22b", "vit-11b"), 8, 8, 256, 12),
}


def case_setup(name: str, chunks: int = 1) -> FillSetup:
    """Return a case of the paper with the constants of set R. Raises ValueError if unknown.

    As in the paper's simulation the encoders have no collectives: `with_encoder_collectives`.

    >>> setup = case_setup("3072")
    >>> setup.microbatches, setup.model.layer.forward[0].ns
    (16, 263658)
    """
    if name not in CASES:
        raise ValueError(f"unknown case {name!r}; known are {', '.join(CASES)}")
    return make_setup(name, CASES[name], SET_R_DEVICE, chunks)


def make_setup(name: str, case: Case, device: Device, chunks: int = 1) -> FillSetup:
    """Return a case's job from its models."""
    model = read_model("+".join((*case.encoders, case.model)))
    # Attention is counted in full, as the paper does.
    parts = tuple(
        replace(part, layers=tuple(replace(layer, causal=False) for layer in part.layers))
        for part in model.parts
    )
    layout = ParallelLayout(
        tp=8, pp=case.stages, dp=case.data, vpp=case.chunks, recompute="all",
        microbatches=case.batch // (2 * case.data),
    )  # fmt: skip
    # Two sequences a microbatch.
    amounts = {"tokens": 2 * 2048, "token_pairs": 2 * 2048**2, "tiles": 2}
    setup = model_setup(replace(model, parts=parts), device, layout, amounts, chunks)
    return replace(setup, name=name, gather_ns=143_000_000, scatter_ns=392_000_000)
