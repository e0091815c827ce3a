"""A problem of filling: gaps, encoder pipelines, kernels; and a filled schedule."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .gaps import Gaps, Ints
from .kernels import Kernel, Splitting, pieces


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One direction of the encoders on one stage: what runs, in order.

    `resource` (kernels): 0 computes, 1 communicates. `ns` (ranks or 1, microbatches or 1, kernels).
    `release` (kernels): how long the first microbatch's kernels wait for the encoders' own
    data-parallel collectives, counted from the step's end that they are at.
    """

    resource: Ints
    ns: Ints
    release: Ints

    @property
    def per_microbatch_ns(self) -> Ints:
        """Of each row, on the slowest rank."""
        return np.asarray(self.ns.sum(axis=2).max(axis=0))


def make_work(
    kernels: Sequence[Kernel],
    *,
    splitting: Splitting | None = None,
    release: Ints | None = None,
    permille: Sequence[int] = (1000,),
) -> Work:
    """Work from kernels. `permille`: each microbatch's cost, or one for all.

    Every microbatch's kernels are cut by themselves; one with fewer pieces than another has pieces
    of 0 ns in front. Raises ValueError for a negative cost.

    >>> make_work((Kernel("a", "compute", 10),), permille=(1000, 500)).ns.tolist()
    [[[10], [5]]]
    """
    if min(permille) < 0:
        raise ValueError(f"a microbatch costs {min(permille)} permille; give 0 or more")
    columns: list[list[int]] = []
    codes: list[int] = []
    for kernel in kernels:
        rows = [pieces(kernel, splitting, cost) for cost in permille]
        most = max(map(len, rows))
        padded = [(0,) * (most - len(row)) + row for row in rows]
        columns += [list(column) for column in zip(*padded, strict=True)]
        codes += [0 if kernel.resource == "compute" else 1] * most
    ns = np.array(columns, np.int64).reshape(len(columns), len(permille)).T
    wait = np.zeros(len(codes), np.int64) if release is None else release
    return Work(np.array(codes, np.int64), np.ascontiguousarray(ns)[None], wait)


@dataclass(frozen=True, slots=True, eq=False)
class FillProblem:
    """What is to be filled with what.

    `groups[g]`: the ranks of an encoder pipeline, first stage first. `copies`: as many pipelines
    stand on each group (the tensor-parallel GPUs of a rank apart). `nominal_ns`: encoder time per
    microbatch and stage before any splitting, which efficiency is measured against. `fixed`:
    microbatch i must be the language model's i-th; else the encoders' order decides. `most`: how
    many microbatches a pipeline may take (its memory). `forward_layers`, `backward_layers`: how
    many kernels each layer of a stage has, where known. Frozen encoders have none backward.
    """

    gaps: Gaps
    groups: tuple[tuple[int, ...], ...]
    copies: int
    forward: Work
    backward: Work
    hop_ns: int
    nominal_ns: Ints
    fixed: bool = False
    most: int | None = None
    forward_layers: tuple[int, ...] = ()
    backward_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check that the microbatches fit the pipelines."""
        if not len(self.forward.resource):
            raise ValueError("the profile is empty: the encoders have no kernels to place")
        if self.most is not None and self.most * self.pipelines < self.microbatches:
            raise ValueError(
                f"{self.pipelines} encoder pipelines hold {self.most} microbatches each, "
                f"not the {self.microbatches} of a step; recompute activations or use a larger "
                f"pp_enc or tp_enc"
            )

    @property
    def microbatches(self) -> int:
        """Of a step and replica."""
        return len(self.gaps.need_ns)

    @property
    def pipelines(self) -> int:
        """Encoder pipelines beside one pipeline of the language model (m)."""
        return len(self.groups) * self.copies

    @property
    def encoder_ns(self) -> int:
        """Encoder time per GPU, unsplit."""
        total = int(np.broadcast_to(self.nominal_ns, (self.microbatches,)).sum())
        return total // self.pipelines

    def row(self, microbatch: int, work: Work) -> int:
        """Which row of the times a microbatch has."""
        return microbatch if work.ns.shape[1] > 1 else 0


@dataclass(frozen=True, slots=True, eq=False)
class EncoderPipeline:
    """What an encoder pipeline does; `starts` are (microbatches, stages, kernels).

    `microbatches`, `backward_order`: which, in the order of their forwards and backwards.
    `position[i]`: which of the language model's microbatches `microbatches[i]` becomes.
    """

    ranks: tuple[int, ...]
    copy: int
    microbatches: tuple[int, ...]
    backward_order: tuple[int, ...]
    position: tuple[int, ...]
    forward: Ints
    backward: Ints


@dataclass(frozen=True, slots=True, eq=False)
class FilledSchedule:
    """A filled schedule. Times are relative to the language model's step without encoders.

    `before_ns`, `after_ns`: encoder time that did not fit and runs before and after it.
    """

    problem: FillProblem
    pipelines: tuple[EncoderPipeline, ...]
    before_ns: int
    after_ns: int
    bound: float = 1.0
    how: str = "ours"
    note: str = field(default="")

    @property
    def step_ns(self) -> int:
        """The whole step."""
        return self.before_ns + self.problem.gaps.step_ns + self.after_ns

    @property
    def efficiency(self) -> float:
        """1 - exposed encoder time / encoder time per GPU; not below 0."""
        return max(0.0, 1 - (self.before_ns + self.after_ns) / max(1, self.problem.encoder_ns))

    @property
    def order(self) -> tuple[int, ...]:
        """The microbatches in the order in which the language model takes them."""
        pairs = [
            pair for p in self.pipelines for pair in zip(p.position, p.microbatches, strict=True)
        ]
        return tuple(microbatch for _, microbatch in sorted(pairs))


def lengths(work: Work, ranks: Sequence[int], microbatches: Sequence[int]) -> Ints:
    """Kernel times as (microbatches, stages, kernels)."""
    ns = work.ns[list(ranks)] if work.ns.shape[0] > 1 else work.ns.repeat(len(ranks), 0)
    rows = np.array(microbatches if ns.shape[1] > 1 else [0] * len(microbatches), np.int64)
    return np.ascontiguousarray(ns[:, rows].transpose(1, 0, 2))
