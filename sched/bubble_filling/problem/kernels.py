"""Kernels: the computing and communicating parts of a layer.

A layer's forward and backward are sequences of kernels, each of which either computes or
communicates (a tensor-parallel collective). While one model communicates, its GPU can compute for
another, and the other way round: filling bubbles uses only this. Times are integer nanoseconds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

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
    `checkpoint_bytes`: kept where the backward recomputes the forward.
    `parameters`: of the whole layer, not of the GPU's share.
    """

    name: str
    forward: tuple[Kernel, ...] = ()
    backward: tuple[Kernel, ...] = ()
    saved_bytes: int = 0
    checkpoint_bytes: int = 0
    parameters: int = 0

    def backward_kernels(self, recompute: bool) -> tuple[Kernel, ...]:
        """Return the backward's kernels, the recomputed forward's first if `recompute`."""
        return self.forward + self.backward if recompute else self.backward


@dataclass(frozen=True, slots=True)
class Splitting:
    """A way to split kernels: into pieces of at most `longest_ns`.

    All pieces together take `slower_percent` longer, and each costs a launch. Here four pieces of
    30 % of the kernel's time (a quarter, 20 % slower), and 10 us of launch each:

    >>> split([Kernel("fc1", "compute", 400_000, True)], Splitting(120_000))[0].ns
    130000
    """

    longest_ns: int
    slower_percent: int = 20
    launch_ns: int = 10_000

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.longest_ns < 1 or self.slower_percent < 0 or self.launch_ns < 0:
            raise ValueError(f"{self}: give a longest piece of at least 1 ns, the others 0 or more")


def total_ns(kernels: Iterable[Kernel], resource: Resource | None = None) -> int:
    """Return the time of all kernels, or of those of one resource."""
    return sum(one.ns for one in kernels if resource in (None, one.resource))


def pieces(one: Kernel, how: Splitting | None, permille: int = 1000) -> tuple[int, ...]:
    """Return the times of a kernel's pieces, rounded up. `permille`: the microbatch's cost.

    >>> pieces(Kernel("fc1", "compute", 400_000, True), Splitting(120_000), permille=500)
    (130000, 130000)
    """
    ns = max(1, -(-one.ns * permille // 1000))
    if how is None or not one.splittable or ns <= how.longest_ns:
        return (ns,)
    count = -(-ns // how.longest_ns)
    return (-(-ns * (100 + how.slower_percent) // (100 * count)) + how.launch_ns,) * count


def split(kernels: Sequence[Kernel], how: Splitting | None) -> tuple[Kernel, ...]:
    """Return the kernels with those split that are splittable and longer than a piece."""
    return tuple(replace(one, ns=ns) for one in kernels for ns in pieces(one, how))
