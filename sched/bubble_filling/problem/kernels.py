"""Kernels: what a layer is made of when it is cut finer than passes.

A layer's forward and backward are sequences of kernels, each of which either computes or
communicates (a tensor-parallel collective). While one model communicates its GPU can compute for
another, and the other way round; that is all that filling bubbles rests on. Times are integer
nanoseconds.
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

    `backward`: without recomputation. `saved_bytes`: what its forward keeps for the backward;
    `checkpoint_bytes`: what it keeps where the backward computes the forward once more.
    `parameters`: of the whole layer, not of the GPU's share.
    """

    name: str
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    saved_bytes: int = 0
    checkpoint_bytes: int = 0
    parameters: int = 0

    def backward_kernels(self, recompute: bool) -> tuple[Kernel, ...]:
        """The backward, after the forward once more where activations are recomputed."""
        return self.forward + self.backward if recompute else self.backward


@dataclass(frozen=True, slots=True)
class Splitting:
    """How kernels are cut: pieces of at most `longest_ns`, dearer and each with a launch.

    Four pieces of 26 % each, and 10 us of launch for each:

    >>> split([Kernel("fc1", "compute", 400_000, True)], Splitting(120_000))[0].ns
    130000
    """

    longest_ns: int
    slower_percent: int = 20
    launch_ns: int = 10_000

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.longest_ns < 1 or self.slower_percent < 0 or self.launch_ns < 0:
            raise ValueError(f"cannot split so: {self}; give a longest piece of at least 1 ns")


def total_ns(kernels: Iterable[Kernel], resource: Resource | None = None) -> int:
    """The time of all kernels, or of those of one resource."""
    return sum(one.ns for one in kernels if resource in (None, one.resource))


def pieces(one: Kernel, how: Splitting | None, permille: int = 1000) -> tuple[int, ...]:
    """The times of a kernel's pieces, for a microbatch that costs so much; rounded up.

    >>> pieces(Kernel("fc1", "compute", 400_000, True), Splitting(120_000), permille=500)
    (130000, 130000)
    """
    ns = max(1, -(-one.ns * permille // 1000))
    if how is None or not one.splittable or ns <= how.longest_ns:
        return (ns,)
    count = -(-ns // how.longest_ns)
    return (-(-ns * (100 + how.slower_percent) // (100 * count)) + how.launch_ns,) * count


def split(kernels: Sequence[Kernel], how: Splitting | None) -> tuple[Kernel, ...]:
    """Cut what is splittable and longer than a piece; the rest stays as it is."""
    return tuple(replace(one, ns=ns) for one in kernels for ns in pieces(one, how))
