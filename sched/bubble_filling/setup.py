"""The training job whose bubbles are filled: its models as kernels, its parallelism, its GPUs.

A layer's forward and backward are sequences of kernels, each of which either computes or
communicates (a tensor-parallel collective). While one model communicates, its GPU can compute for
another, and the other way round: filling bubbles uses only this. Times are integer nanoseconds.

Made from model shapes (presets.py), or read from JSON with measured kernels:

    {"name": "mine", "stages": 8, "chunks": 12, "microbatches": 16, "tensor": 8, "data": 48,
     "model": {"layer": {"name": "llm", "forward": [{"name": "gather", "resource": "communication",
       "ns": 264000}, ...], "backward": [...]}, "layers": 96},
     "encoders": {"8": [{"layer": {...}, "layers": 48}]}, "hop_ns": 300000, ...}

`encoders` has an entry for each tensor-parallel width that was measured.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from ..ir.typed_json import read_json

Resource = Literal["compute", "communication"]
RESOURCES: tuple[Resource, ...] = ("compute", "communication")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel. `splittable`: may run as several smaller ones (a matrix product along tokens)."""

    name: str
    resource: Resource
    ns: int
    splittable: bool = False


@dataclass(frozen=True, slots=True)
class KernelLayer:
    """A layer on one GPU.

    `backward`: without recomputation. `saved_bytes`: kept by the forward for the backward;
    `checkpoint_bytes`: kept where the backward recomputes the forward; `working_bytes`: what a
    backward needs beside. `parameters`: of the whole layer, not of the GPU's share.
    """

    name: str
    forward: tuple[Kernel, ...] = ()
    backward: tuple[Kernel, ...] = ()
    saved_bytes: int = 0
    checkpoint_bytes: int = 0
    parameters: int = 0
    working_bytes: int = 0

    def at_work_bytes(self, recompute: bool) -> int:
        """Return what a backward needs beside what is kept: with the layer's own, recomputed."""
        again = self.saved_bytes - self.checkpoint_bytes if recompute else 0
        return self.working_bytes + max(0, again)

    def backward_kernels(self, recompute: bool) -> tuple[Kernel, ...]:
        """Return the backward's kernels, the recomputed forward's first if `recompute`."""
        return self.forward + self.backward if recompute else self.backward


@dataclass(frozen=True, slots=True)
class Splitting:
    """A way to split kernels: into pieces of at most `longest_ns`.

    All pieces together take `slower_percent` longer, and each costs a launch. Here four pieces of
    30 % of the kernel's time (a quarter, 20 % slower), and 10 us of launch each:

    >>> pieces(Kernel("fc1", "compute", 400_000, True), Splitting(120_000))[0]
    130000
    """

    longest_ns: int
    slower_percent: int = 20
    launch_ns: int = 10_000

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.longest_ns < 1 or self.slower_percent < 0 or self.launch_ns < 0:
            raise ValueError(f"{self}: give a longest piece of at least 1 ns, the others 0 or more")


def total_ns(kernels: Iterable[Kernel]) -> int:
    """Return the time of all kernels."""
    return sum(kernel.ns for kernel in kernels)


def pieces(kernel: Kernel, how: Splitting | None) -> tuple[int, ...]:
    """Return the times of a kernel's pieces, rounded up."""
    ns = kernel.ns
    if how is None or not kernel.splittable or ns <= how.longest_ns:
        return (ns,)
    count = -(-ns // how.longest_ns)
    return (-(-ns * (100 + how.slower_percent) // (100 * count)) + how.launch_ns,) * count


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack of `layers` equal layers. `trainable`: False for a frozen encoder (no backward)."""

    layer: KernelLayer
    layers: int
    trainable: bool = True


@dataclass(frozen=True, slots=True)
class FillSetup:
    """One data-parallel replica of a job, per GPU; all times in nanoseconds.

    `stages` pipeline ranks with `chunks` chunks each, `tensor` GPUs wide; `data` replicas.
    `encoders[t]`: the encoders cut over t GPUs. `recompute`: the language model
    recomputes its forwards. `hop_ns`: sending a tensor to another stage. `gather_ns`,
    `scatter_ns`: the data-parallel collectives at the start and the end of a step.
    `encoder_gather_ns`, `encoder_scatter_ns`: the same for the encoders, per billion parameters and
    GPU (0: not modelled, as in the paper). `state_bytes`: a parameter's copies and gradient;
    `optimizer_bytes`: of a parameter, sharded over the replicas.
    """

    name: str
    stages: int
    chunks: int
    microbatches: int
    tensor: int
    data: int
    model: Stack
    encoders: Mapping[int, tuple[Stack, ...]]
    recompute: bool = True
    hop_ns: int = 0
    gather_ns: int = 0
    scatter_ns: int = 0
    encoder_gather_ns: int = 0
    encoder_scatter_ns: int = 0
    memory_bytes: int = 80 * 10**9
    state_bytes: int = 6
    optimizer_bytes: int = 12

    def __post_init__(self) -> None:
        """Check sizes and kernels. Raises ValueError for what cannot be filled."""
        for name in ("stages", "chunks", "microbatches", "tensor", "data"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} is {value}; give at least 1")
        if self.model.layers % (self.stages * self.chunks):
            raise ValueError(
                f"{self.model.layers} layers do not fill {self.stages} stages of {self.chunks} "
                f"chunks evenly; choose chunks so that stages x chunks divides the layers"
            )
        if not self.model.layer.forward or not self.model.layer.backward:
            raise ValueError("the profile is empty: the language model has no kernels")
        if not self.encoders or not all(self.encoders.values()):
            raise ValueError("the profile is empty: it has no encoders")
        # An encoder without a forward would be filled in no time at all.
        encoders = [stack for row in self.encoders.values() for stack in row]
        for stack in encoders:
            if not stack.layer.forward or stack.layers < 1:
                raise ValueError(f"the profile is empty: encoder {stack.layer.name} has no kernels")
        for stack in (self.model, *encoders):
            for kernel in stack.layer.forward + stack.layer.backward:
                if kernel.resource not in RESOURCES or type(kernel.ns) is not int or kernel.ns < 1:
                    raise ValueError(f"{kernel}: give compute or communication and at least 1 ns")

    def encoder_stacks(self, tensor: int) -> tuple[Stack, ...]:
        """Return the encoders over `tensor` GPUs. Raises ValueError if that was not measured."""
        if tensor not in self.encoders:
            have = ", ".join(map(str, sorted(self.encoders)))
            raise ValueError(f"no encoder kernels for {tensor} tensor-parallel GPUs; have {have}")
        return self.encoders[tensor]


def dump_setup(setup: FillSetup) -> str:
    """Return a setup as JSON; `load_setup` reads it."""
    return json.dumps(asdict(setup), indent=1)


def load_setup(text: str) -> FillSetup:
    """Return the setup in a JSON text. Raises ValueError that names the field and its value."""
    return read_json(text, FillSetup, "the profile")
