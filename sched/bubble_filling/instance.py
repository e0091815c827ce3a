"""A filling problem (gaps, encoder pipelines, kernels) and its result, a filled schedule."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .gaps import Gaps, Ints
from .setup import Kernel, Splitting, pieces


@dataclass(frozen=True, slots=True, eq=False)
class StageKernels:
    """The kernels of one direction of the encoders on one stage, in order.

    `resource` (kernels): 0 computes, 1 communicates. `ns` (ranks or 1, microbatches or 1, kernels).
    `release` (kernels): nanoseconds that the first microbatch's kernels wait for the encoders' own
    data-parallel collectives, from the start of the step (forward) or its end (backward).
    `layers`: the number of kernels of each layer, where known.
    """

    resource: Ints
    ns: Ints
    release: Ints
    layers: tuple[int, ...] = ()

    @property
    def per_microbatch_ns(self) -> Ints:
        """Return each row's time on the slowest rank."""
        return np.asarray(self.ns.sum(axis=2).max(axis=0))


def make_work(
    layers: Sequence[Sequence[Kernel]],
    *,
    splitting: Splitting | None = None,
    collective_ns: int = 0,
    backward: bool = False,
) -> StageKernels:
    """Return work made of layers' kernels, the same for every microbatch.

    `collective_ns`: of the encoders' parameters or, `backward`, of their gradients.

    >>> make_work([[Kernel("a", "compute", 10)]]).ns.tolist()
    [[[10]]]
    """
    rows = [
        [
            (int(kernel.resource == "communication"), ns)
            for kernel in layer
            for ns in pieces(kernel, splitting)
        ]
        for layer in layers
    ]
    table = np.array([piece for row in rows for piece in row], np.int64).reshape(-1, 2)
    count = len(table)
    # The collective arrives layer by layer, so each kernel waits for its share of it.
    release = np.arange(1, count + 1, dtype=np.int64) * collective_ns // max(1, count)
    return StageKernels(
        np.ascontiguousarray(table[:, 0]),
        np.ascontiguousarray(table[None, None, :, 1]),
        release[::-1] if backward else release,
        tuple(map(len, rows)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class FillProblem:
    """A step's gaps, and the encoder work to place in them.

    `groups[g]`: the ranks of an encoder pipeline, first stage first. `copies`: encoder pipelines on
    each group, on different tensor-parallel GPUs of its ranks. `nominal_ns`: encoder time per
    microbatch and stage before any splitting; efficiency is measured against it. `fixed`:
    microbatch i must be the language model's i-th; else the encoders' order decides. `most`: the
    microbatches that a pipeline's memory holds. Frozen encoders have no kernels backward.
    `encoders`: of each encoder, its layers on a stage and whether it is trained; one by default.
    """

    gaps: Gaps
    groups: tuple[tuple[int, ...], ...]
    copies: int
    forward: StageKernels
    backward: StageKernels
    hop_ns: int
    nominal_ns: Ints
    fixed: bool = False
    most: int | None = None
    encoders: tuple[tuple[int, bool], ...] = ()

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

    def layers_of_encoders(self) -> tuple[tuple[range, bool], ...]:
        """Return the numbers of each encoder's layers on a stage, and whether it is trained.

        On a stage layers are numbered encoder by encoder.
        """
        whole = ((len(self.forward.layers), bool(self.backward.layers)),)
        layers, start = [], 0
        for count, trained in self.encoders or whole:
            layers.append((range(start, start + count), trained))
            start += count
        return tuple(layers)

    @property
    def microbatches(self) -> int:
        """The number of microbatches of a step and replica."""
        return len(self.gaps.need_ns)

    @property
    def pipelines(self) -> int:
        """The number of encoder pipelines beside one pipeline of the language model (m)."""
        return len(self.groups) * self.copies

    @property
    def encoder_ns(self) -> int:
        """Encoder time per GPU before splitting, in nanoseconds."""
        return int(np.broadcast_to(self.nominal_ns, (self.microbatches,)).sum()) // self.pipelines

    def row(self, microbatch: int, work: StageKernels) -> int:
        """Return the row of `work.ns` that holds a microbatch's times."""
        return microbatch if work.ns.shape[1] > 1 else 0


@dataclass(frozen=True, slots=True, eq=False)
class EncoderPipeline:
    """The schedule of one encoder pipeline.

    `microbatches`: the language model's, in the order of forwards and of backwards. `forward`,
    `backward`: starts of kernels, (microbatches, stages, kernels) nanoseconds, in this order;
    `forward_end`, `backward_end`: their ends.
    """

    ranks: tuple[int, ...]
    copy: int
    microbatches: tuple[int, ...]
    forward: Ints
    backward: Ints
    forward_end: Ints
    backward_end: Ints


@dataclass(frozen=True, slots=True, eq=False)
class FilledSchedule:
    """Encoder work placed in the gaps. Time 0 is the start of the step without encoders.

    `before_ns`, `after_ns`: encoder time that did not fit and runs before and after the step.
    """

    problem: FillProblem
    pipelines: tuple[EncoderPipeline, ...]
    before_ns: int
    after_ns: int
    note: str = ""

    @property
    def step_ns(self) -> int:
        """The length of the whole step, exposed encoder time included."""
        return self.before_ns + self.problem.gaps.step_ns + self.after_ns

    @property
    def efficiency(self) -> float:
        """1 - exposed encoder time / encoder time per GPU, at least 0."""
        return max(0.0, 1 - (self.before_ns + self.after_ns) / max(1, self.problem.encoder_ns))
