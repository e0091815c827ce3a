"""Named setups of the Optimus paper, and kernels computed from the shapes of its models.

Work is counted in floating point operations, attention in full (not halved for causality), as
the papers do. A forward is, in Megatron-LM's sequence parallelism, all-gather, attention,
reduce-scatter, norm, all-gather, MLP, reduce-scatter; a backward has the same collectives and twice
the work. A collective of b bytes over n GPUs takes b (n - 1) / n / bandwidth + latency. The image
encoder's kernels are its matrix products one by one, since they are what has to fit into bubbles;
the language model's are the stretches between its collectives.
"""

from dataclasses import dataclass, replace

from .setup import FillSetup, Kernel, KernelLayer, Stack

# Where the language model's attention and MLP share its work: a third and two thirds.
_ATTENTION, _PARTS = 1, 3


@dataclass(frozen=True, slots=True)
class Tower:
    """A stack of equal layers.

    `key_value_permille`: the share of heads with keys and values of their own (grouped queries).
    """

    name: str
    width: int
    layers: int
    inner: int
    gated: bool = False
    key_value_permille: int = 1000

    @property
    def attention_parameters(self) -> int:
        """Parameters of queries, keys, values and output of one layer."""
        return self.width**2 * (2000 + 2 * self.key_value_permille) // 1000

    @property
    def parameters(self) -> int:
        """Parameters of one layer."""
        return self.attention_parameters + (3 if self.gated else 2) * self.width * self.inner


TOWERS = {
    tower.name: tower
    for tower in (
        Tower("ViT-3B", 2304, 48, 9216),
        Tower("ViT-5B", 3072, 48, 12288),
        Tower("ViT-11B", 4096, 48, 16384),
        Tower("ViT-22B", 6144, 48, 24576),
        Tower("GPT-11B", 3072, 80, 12288),
        Tower("LLAMA-70B", 8192, 80, 28672, gated=True, key_value_permille=125),
        Tower("GPT-175B", 12288, 96, 49152),
    )
}


def tower(name: str) -> Tower:
    """Return the tower of a name. Raises ValueError for an unknown one.

    >>> tower("ViT-22B").parameters * 48 // 10**9
    21
    """
    try:
        return TOWERS[name]
    except KeyError:
        raise ValueError(f"unknown model {name!r}; known are {', '.join(TOWERS)}") from None


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A GPU and its links. `efficiency_permille`: share of the peak that compute kernels reach.

    `tensor_chunks`: in so many a tensor-parallel collective runs beside the product that needs or
    makes what it carries (sched/runtime/tensor).
    """

    flops_per_s: int = 989 * 10**12
    efficiency_permille: int = 437
    tensor_bytes_per_s: int = 350 * 10**9
    tensor_latency_ns: int = 12_000
    network_bytes_per_s: int = 45 * 10**9
    network_latency_ns: int = 20_000
    norm_ns: int = 20_000
    tensor_chunks: int = 1

    def compute_ns(self, flops: int) -> int:
        """Return the time of `flops` floating point operations."""
        return flops * 10**12 // (self.flops_per_s * self.efficiency_permille)

    def exposed_ns(self, size: int, ranks: int, product_ns: int) -> int:
        """Return by how much an all-gather or reduce-scatter of `size` bytes lengthens its product.

        0 for one rank. In n chunks the first is waited for; the product takes as long as it does,
        or the other n - 1 and its last part do (DistTrain, section 7).

        >>> [GpuSpec(tensor_chunks=n).exposed_ns(50331648, 8, 700_000) for n in (1, 2, 4, 8)]
        [137829, 74914, 43457, 27728]
        """
        if ranks == 1:
            return 0
        count = self.tensor_chunks
        whole = size * (ranks - 1) * 10**9 // (ranks * self.tensor_bytes_per_s)
        one = whole // count + self.tensor_latency_ns
        return one + max(0, (count - 1) * one + product_ns // count - product_ns)

    def hop_ns(self, size: int, ranks: int) -> int:
        """Return the time to send a tensor to the next stage; each rank sends its share."""
        return size * 10**9 // (ranks * self.network_bytes_per_s) + self.network_latency_ns


@dataclass(frozen=True, slots=True)
class MicrobatchShape:
    """A microbatch on a GPU: sequences of `length` tokens, layers sharded over `tensor` ranks."""

    sequences: int = 2
    length: int = 2048
    tensor: int = 8

    @property
    def tokens(self) -> int:
        """Tokens of the microbatch."""
        return self.sequences * self.length


def language_layer(model: Tower, load: MicrobatchShape, machine: GpuSpec) -> KernelLayer:
    """Return a layer of the language model: blocks of computation between collectives."""
    compute = machine.compute_ns(sum(_flops(model, load).values())) // load.tensor
    forward_syncs, backward_syncs = _collectives(model, load, machine)
    first = compute * _ATTENTION // _PARTS
    forward = _halves(first, compute - first, machine.norm_ns, forward_syncs)
    backward = _halves(2 * (compute - first), 2 * first, machine.norm_ns, backward_syncs)
    return KernelLayer(model.name, forward, backward, *_bytes(model, load), model.parameters)


def _halves(first: int, second: int, norm: int, syncs: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Return two blocks between collectives; the norm between them is taken off the second."""
    parts = [
        syncs[0],
        Kernel("block", "compute", first),
        syncs[1],
        Kernel("norm", "compute", min(norm, second - 1)),
        syncs[2],
        Kernel("block", "compute", second - min(norm, second - 1)),
        syncs[3],
    ]
    return tuple(part for part in parts if part.ns)


def encoder_layer(model: Tower, load: MicrobatchShape, machine: GpuSpec) -> KernelLayer:
    """Return a layer of an encoder, a kernel per matrix product; the backward has two for each."""
    work = {
        name: machine.compute_ns(flops) // load.tensor
        for name, flops in _flops(model, load).items()
    }
    forth, back = _collectives(model, load, machine)

    def once(*names: str) -> tuple[Kernel, ...]:
        return tuple(Kernel(name, "compute", work[name], True) for name in names)

    def twice(*names: str) -> tuple[Kernel, ...]:
        parts = (f"{name}.{end}" for name in names for end in ("inputs", "weights"))
        return tuple(Kernel(part, "compute", work[part.split(".")[0]], True) for part in parts)

    forward = (
        forth[0], *once("qkv", "core", "proj"), forth[1], forth[2], *once("fc1", "fc2"), forth[3],
    )  # fmt: skip
    backward = (
        back[0], *twice("fc2", "fc1"), back[1], back[2], *twice("proj", "core", "qkv"), back[3],
    )  # fmt: skip
    forward, backward = (tuple(one for one in each if one.ns) for each in (forward, backward))
    return KernelLayer(model.name, forward, backward, *_bytes(model, load), model.parameters)


def _flops(model: Tower, load: MicrobatchShape) -> dict[str, int]:
    """Return a layer's forward FLOPs over the whole microbatch and all tensor-parallel ranks."""
    square = model.width**2
    inner = 2 * model.width * model.inner * load.tokens
    return {
        "qkv": 2 * (model.attention_parameters - square) * load.tokens,
        "core": 4 * load.length * model.width * load.tokens,
        "proj": 2 * square * load.tokens,
        "fc1": inner * (2 if model.gated else 1),
        "fc2": inner,
    }


def _collectives(
    model: Tower, load: MicrobatchShape, machine: GpuSpec
) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """Return the four collectives of a forward and of a backward, as far as they are exposed."""
    work = _flops(model, load)

    def beside(*products: str) -> tuple[Kernel, ...]:
        sizes = [machine.compute_ns(work[name]) // load.tensor for name in products]
        size = 2 * load.tokens * model.width
        times = [machine.exposed_ns(size, load.tensor, each) for each in sizes]
        return tuple(Kernel("collective", "communication", ns) for ns in times)

    return beside("qkv", "proj", "fc1", "fc2"), beside("fc2", "fc1", "proj", "qkv")


def _bytes(model: Tower, load: MicrobatchShape) -> tuple[int, int]:
    """Return bytes saved for the backward: with fused attention 34 s b h, recomputed its input."""
    size = load.tokens * model.width // load.tensor
    return 34 * size, 2 * size


SET_R = """Set R: every activation computed again, kernels at 43.7 % of 989 TFLOPS, NVLink at
350 GB/s + 12 us, 45 GB/s + 20 us between stages, 0.143 s all-gather and 0.392 s reduce-scatter
exposed. Fitted to Optimus (2024): the efficiency and the recomputation to Table 5's balanced row,
the sum of the two collectives (0.535 s) to Table 7's coarse column; nothing to the fine column.
It does not reproduce: Table 1 (another job: 0.625 s exposed, 5.12 s), the ViT-22B layer's 1.4 ms
forward and 2.0 ms backward (here 1.7 and 5.1 with the forward once more), and Table 5's Optimus
row together with Table 7 (no constant costs do)."""


@dataclass(frozen=True, slots=True)
class Case:
    """A job of the paper: models, GPUs as data x stages x tensor, batch, chunks."""

    model: str
    encoders: tuple[str, ...]
    data: int
    stages: int
    batch: int
    chunks: int
    tensor: int = 8
    sequences: int = 2

    @property
    def microbatches(self) -> int:
        """The number of microbatches of a replica's step."""
        return self.batch // (self.data * self.sequences)


# Tables 5 and 7 (by GPUs), 3 and 6. LLAMA's 80 layers do not fill the paper's 4 stages of 6 chunks:
# 5 is a guess.
CASES = {
    "1536": Case("GPT-175B", ("ViT-22B",), 24, 8, 1536, 12),
    "2048": Case("GPT-175B", ("ViT-22B",), 32, 8, 1536, 12),
    "3072": Case("GPT-175B", ("ViT-22B",), 48, 8, 1536, 12),
    "A": Case("LLAMA-70B", ("ViT-11B",), 2, 4, 32, 5),
    "B": Case("LLAMA-70B", ("ViT-22B",), 4, 4, 64, 5),
    "C": Case("GPT-175B", ("ViT-11B",), 4, 8, 128, 12),
    "D": Case("GPT-175B", ("ViT-22B",), 8, 8, 256, 12),
    "11+5": Case("GPT-175B", ("ViT-11B", "ViT-5B"), 8, 8, 256, 12),
    "22+5": Case("GPT-175B", ("ViT-22B", "ViT-5B"), 8, 8, 256, 12),
    "22+11": Case("GPT-175B", ("ViT-22B", "ViT-11B"), 8, 8, 256, 12),
}


def case_setup(name: str, machine: GpuSpec | None = None) -> FillSetup:
    """Return a case of the paper with the constants of set R. Raises ValueError if unknown.

    As in the paper's simulation the encoders have no collectives: `with_encoder_collectives`.

    >>> setup = case_setup("3072")
    >>> setup.microbatches, setup.model.layer.forward[0].ns
    (16, 263658)
    """
    if name not in CASES:
        raise ValueError(f"unknown case {name!r}; known are {', '.join(CASES)}")
    return make_setup(name, CASES[name], machine or GpuSpec())


def with_encoder_collectives(setup: FillSetup, machine: GpuSpec | None = None) -> FillSetup:
    """Return a job that counts its encoders' own collectives, on the machine's network.

    Parameters are gathered in bf16 and gradients scattered in fp32. A job that has times for them,
    as a measured profile may, is returned as it is.
    """
    if setup.encoder_gather_ns or setup.encoder_scatter_ns:
        return setup
    rate = (machine or GpuSpec()).network_bytes_per_s
    gather, scatter = (size * 10**18 // rate for size in (2, 4))
    return replace(setup, encoder_gather_ns=gather, encoder_scatter_ns=scatter)


def make_setup(name: str, case: Case, machine: GpuSpec) -> FillSetup:
    """Return a job from model shapes, for all tensor-parallel widths that divide `tensor`."""
    load = MicrobatchShape(case.sequences, 2048, case.tensor)
    model = tower(case.model)
    widths = [width for width in range(1, case.tensor + 1) if case.tensor % width == 0]

    def encoder(which: str, width: int) -> KernelLayer:
        return encoder_layer(tower(which), replace(load, tensor=width), machine)

    return FillSetup(
        name=name,
        stages=case.stages,
        chunks=case.chunks,
        microbatches=case.microbatches,
        tensor=case.tensor,
        data=case.data,
        model=Stack(language_layer(model, load, machine), model.layers),
        encoders={
            width: tuple(Stack(encoder(one, width), tower(one).layers) for one in case.encoders)
            for width in widths
        },
        hop_ns=machine.hop_ns(2 * load.tokens * model.width, case.tensor),
        gather_ns=143_000_000,
        scatter_ns=392_000_000,
        origin=SET_R,
    )
