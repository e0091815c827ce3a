"""Balanced model partition: layers of an encoder and a language model to pipeline stages.

OmniBal (2025), section 4.2: a greedy anchor makes the stages' forward times close; around it all
partitions with every border moved by at most r are ranked by

    VAR(forward time) + SUM(bytes handed on),  in ms^2 and MiB as the paper's Table 4 has them,

and the K first are timed, by training a few steps or by a simulator. Only the fastest counts, so
the ranking has to be good, not perfect. The paper ranks all (2r + 1)^(N - 1) candidates; here the
K best come from a dynamic programme over the borders, exactly: both terms are sums over stages,
since the mean is the same for all partitions. Everything is in whole numbers.

A partition is a tuple of sizes: how many layers each stage has.

`SplitPlan` is the file by which a model is split: each stage's layers, and those to recompute.
`plan job --only partition`, and `recompute`, write it (--out), `sched.runtime.split` applies it:

    {"limit_bytes": 74000000000,
     "stages": [{"stage": 0, "first_layer": 0, "layers": 5, "recompute": [0, 1],
                 "predicted_bytes": 71000000000}, ...]}

Layers to recompute are counted from the stage's first. Limit and prediction may be missing.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Annotated, Any

import msgspec

from ..ir.program import place
from ..ir.typed_json import Whole
from ..shapes import Device, LayerCost, ParallelLayout, partition, simulate_step

Sizes = tuple[int, ...]
# ns^2 of variance that weigh as much as a byte: an ms^2 to a MiB, rounded.
_NS2_PER_BYTE = 10**12 // 2**20


def balanced_partition(
    layers: Sequence[LayerCost], stages: int, step_ns: Callable[[Sizes], int], *, keep: int = 15
) -> tuple[tuple[Sizes, int], ...]:
    """Return OmniBal's `keep` candidates with their step times, the fastest first.

    `step_ns` times a partition; the usual ones are timed too, so the first is no slower than they
    are. Of equally fast ones the most even comes first: where one stage decides, such as a
    whole encoder, many are. Raises ValueError for fewer layers than stages.
    """
    usual = (method(layers, stages) for method in BASELINES.values())
    splits = dict.fromkeys((*candidates(layers, stages, keep=keep), *usual))
    timed = [(sizes, step_ns(sizes)) for sizes in splits]
    times = [layer.forward_ns for layer in layers]
    return tuple(sorted(timed, key=lambda timing: (timing[1], variance(times, timing[0]))))


def candidates(
    layers: Sequence[LayerCost], stages: int, *, radius: int = 3, keep: int = 15
) -> tuple[Sizes, ...]:
    """Return the `keep` best partitions by variance and traffic, borders near the anchor's.

    `radius`: the layers that a border may be away from the anchor's. Ties go to the partition that
    comes first in the order of its borders.
    """
    if radius < 0 or keep < 1:
        raise ValueError(f"got radius {radius} and {keep} candidates; give 0 or more, 1 or more")
    times = [layer.forward_ns for layer in layers]
    borders = list(accumulate(anchor(times, stages)))[:-1]
    windows = [
        range(max(1, border - radius), min(len(layers), border + radius + 1)) for border in borders
    ]
    return _least(times, [layer.output_bytes for layer in layers], windows, keep)


def anchor(times: Sequence[int], stages: int) -> Sizes:
    """Return a greedy partition: each stage ends closest to its share of the whole time.

    >>> anchor([3, 3, 3, 1, 1, 1], 2), anchor([1, 1, 1, 9], 3)
    ((2, 4), (2, 1, 1))
    """
    _check(times, stages)
    until = [0, *accumulate(times)]
    borders = [0]
    for stage in range(1, stages):
        low, high = borders[-1] + 1, len(times) - (stages - stage)
        # stages * until, against stage * total: no fractions.
        target = stage * until[-1]
        borders.append(min(range(low, high + 1), key=lambda b: abs(stages * until[b] - target)))
    return tuple(b - a for a, b in pairwise([*borders, len(times)]))


def parameter_based(layers: Sequence[LayerCost], stages: int) -> Sizes:
    """Return the partition with the most equal parameters (DeepSpeed's "parameters")."""
    return partition([layer.parameters for layer in layers], place(stages))


def even_stages(layers: int, stages: int) -> Sizes:
    """Return equal numbers of layers, one more for the first stages (DeepSpeed's "uniform").

    >>> even_stages(7, 3)
    (3, 2, 2)
    """
    _check(range(layers), stages)
    size, extra = divmod(layers, stages)
    return (size + 1,) * extra + (size,) * (stages - extra)


def profile_based(layers: Sequence[LayerCost], stages: int) -> Sizes:
    """Return the partition of least variance of forward times, whatever the traffic (PipeDream)."""
    times = [layer.forward_ns for layer in layers]
    _check(times, stages)
    return _least(times, [0] * len(layers), [range(1, len(layers))] * (stages - 1), 1)[0]


def minmax_based(layers: Sequence[LayerCost], stages: int) -> Sizes:
    """Return the partition with the shortest longest stage (Optimus, Appendix B)."""
    return partition([layer.forward_ns + layer.backward_ns for layer in layers], place(stages))


BASELINES: dict[str, Callable[[Sequence[LayerCost], int], Sizes]] = {
    "parameter": parameter_based,
    "layer": lambda layers, stages: even_stages(len(layers), stages),
    "profile": profile_based,
    "minmax": minmax_based,
}


def variance(amounts: Sequence[int], sizes: Sizes) -> float:
    """Return VAR of Table 4: squared deviations of the stages' sums from their mean, summed.

    >>> variance([1, 1, 1, 3], (3, 1)), variance([1, 1, 1, 3], (2, 2))
    (0.0, 2.0)
    """
    sums = [sum(amounts[a:b]) for a, b in pairwise([0, *accumulate(sizes)])]
    return sum((len(sums) * total - sum(sums)) ** 2 for total in sums) / len(sums) ** 2


def traffic_bytes(layers: Sequence[LayerCost], sizes: Sizes) -> int:
    """Return SUM(comm) of Table 4: the bytes that all stages send on, for one microbatch."""
    return sum(layers[end - 1].output_bytes for end in list(accumulate(sizes))[:-1])


def step_timer(
    layers: Sequence[LayerCost], device: Device, layout: ParallelLayout
) -> Callable[[Sizes], int]:
    """Return a function that times a partition of these layers, in the simulator."""

    def step_ns(sizes: Sizes) -> int:
        cut = replace(layout, stages=sizes)
        return simulate_step([layers] * cut.microbatches, device, cut).total_ns

    return step_ns


def _check(amounts: Sequence[object], stages: int) -> None:
    if stages < 1 or len(amounts) < stages:
        raise ValueError(f"{len(amounts)} layers do not fill {stages} stages; use fewer stages")


def _least(
    times: Sequence[int], traffic: Sequence[int], windows: Sequence[range], keep: int
) -> tuple[Sizes, ...]:
    """Return the `keep` partitions of least variance and traffic, the i-th border in windows[i].

    A dynamic programme that keeps the `keep` best beginnings for every border.
    """
    stages, until = len(windows) + 1, [0, *accumulate(times)]

    def cost(start: int, end: int) -> int:
        off = stages * (until[end] - until[start]) - until[-1]
        handed = traffic[end - 1] if end < len(times) else 0
        return off * off + handed * stages * stages * _NS2_PER_BYTE

    best: dict[int, list[tuple[int, tuple[int, ...]]]] = {0: [(0, ())]}
    for window in [*windows, range(len(times), len(times) + 1)]:
        best = {
            end: heapq.nsmallest(
                keep,
                (
                    (value + cost(start, end), (*borders, end))
                    for start, beginnings in best.items()
                    if start < end
                    for value, borders in beginnings
                ),
            )
            for end in window
        }
    return tuple(
        tuple(b - a for a, b in pairwise((0, *borders))) for _, borders in best[len(times)]
    )


class StageLayers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One stage's layers, and the positions of those to recompute."""

    stage: Whole
    first_layer: Whole
    layers: Annotated[int, msgspec.Meta(ge=1)]
    recompute: tuple[Whole, ...] = ()
    predicted_bytes: Whole | None = None

    @property
    def numbers(self) -> range:
        """Return the numbers of the stage's layers in the model."""
        return range(self.first_layer, self.first_layer + self.layers)


class SplitPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Every stage's layers. Raises ValueError for stages that do not follow each other.

    >>> make_split((2, 1)).stages[1].numbers
    range(2, 3)
    """

    stages: Annotated[tuple[StageLayers, ...], msgspec.Meta(min_length=1)]
    limit_bytes: Whole | None = None

    def __post_init__(self) -> None:
        """Check that each stage begins where the one before it ends."""
        layer = 0
        for number, stage in enumerate(self.stages):
            if (stage.stage, stage.first_layer) != (number, layer):
                raise ValueError(
                    f"stage {stage.stage} begins with layer {stage.first_layer}; stage {number} "
                    f"and layer {layer} come next"
                )
            if any(position >= stage.layers for position in stage.recompute):
                raise ValueError(
                    f"stage {number} has {stage.layers} layers and recomputes "
                    f"{list(stage.recompute)}; count them from its first"
                )
            layer += stage.layers

    @property
    def layers(self) -> int:
        """Return the number of the model's layers."""
        return sum(stage.layers for stage in self.stages)


def make_split(sizes: Sizes, recompute: Sequence[Sequence[int]] = ()) -> SplitPlan:
    """Return the plan of stages with these numbers of layers.

    `recompute`: for each stage the positions of the layers to recompute, none by default.
    """
    first = [0, *accumulate(sizes)]
    again = recompute or [()] * len(sizes)
    return SplitPlan(
        tuple(
            StageLayers(number, first[number], size, tuple(positions))
            for number, (size, positions) in enumerate(zip(sizes, again, strict=True))
        )
    )


def dump_split(plan: SplitPlan) -> Mapping[str, Any]:
    """Return a plan for a JSON file, which `read_stages` reads."""
    return dict(msgspec.to_builtins(plan))
