"""Compute times, bytes, stages and cost profiles from the shapes of models.

Work is counted in floating point operations (a multiply-add is two), after Narayanan et al., 2021:
a transformer layer's forward over s tokens of width h is 24 s h^2 for the matrix products of a
GPT layer and 4 s^2 h for attention, a vocabulary of V costs 2 s h V, and a backward is twice its
forward. A `Device` turns work into nanoseconds at a constant efficiency; small matrices run below
it, so such times are a lower bound; a measured `CostProfile` gives the real ones.

`partition` splits layers into contiguous stages so that the slowest is as fast as possible, by the
dynamic program of Optimus (2024), Appendix B, after Alpa: let F(l, m) be the smallest possible time
of the slowest of m stages that hold the first l layers; it is the minimum over j of max(F(j, m -
1), time of layers j + 1..l). Many partitions reach the minimum, and the published program leaves
open which to take. This one takes the most even stages (least squares, exactly). Then, if ranks
hold several chunks, it moves single layers while the ranks get more even: a local search, so the
result is not always the best. Ties go to more layers on later stages, which hold fewer microbatches
in 1F1B.

`shape_profile` computes a cost profile: rates per thousand units of a resource, which are tokens,
pairs of tokens within a sequence (for attention) and, with an encoder, tiles. A stage's rates are
the sums of its layers' rates.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from .ir.program import place
from .simulation.cost_profile import CostFunction, CostProfile


@dataclass(frozen=True, slots=True)
class Device:
    """A processor and its links. `efficiency_percent`: the share of the peak that layers reach."""

    flops_per_s: int = 312 * 10**12
    efficiency_percent: int = 50
    memory_bytes_per_s: int = 2 * 10**12
    link_bytes_per_s: int = 300 * 10**9

    def compute_ns(self, flops: int) -> int:
        """Return the time of a number of floating point operations.

        >>> Device(10**12, 50).compute_ns(10**9)
        2000000
        """
        return flops * 10**11 // (self.flops_per_s * self.efficiency_percent)

    def gather_ns(self, size: int, ranks: int) -> int:
        """Return the time of an all-gather or reduce-scatter: (n - 1) / n of the bytes are sent."""
        return size * (ranks - 1) * 10**9 // (ranks * self.link_bytes_per_s)


@dataclass(frozen=True, slots=True)
class TransformerLayer:
    """A transformer layer, of a language model or an image encoder.

    `hidden`: the width h. `inner`: the width of the MLP, 4 h by default. `matrices`: the number of
    the MLP's matrices, 2, or 3 if it is gated. `key_values`: the width of keys and values together,
    2 h by default (less with grouped queries).
    """

    hidden: int
    inner: int = 0
    matrices: int = 2
    key_values: int = 0

    @property
    def parameters(self) -> int:
        """Return the parameters of its matrices: queries and output 2 h^2, keys and values, MLP."""
        inner = self.inner or 4 * self.hidden
        attention = self.hidden * (2 * self.hidden + (self.key_values or 2 * self.hidden))
        return attention + self.matrices * self.hidden * inner

    def forward_flops(self, *, tokens: int, pairs: int) -> int:
        """Return the operations of a forward; `pairs`: the sum of the sequences' squared lengths.

        >>> flops = 24 * 10 * 1024**2 + 4 * 100 * 1024
        >>> TransformerLayer(1024).forward_flops(tokens=10, pairs=100) == flops
        True
        """
        return 2 * self.parameters * tokens + 4 * self.hidden * pairs

    def activation_bytes(self, tokens: int) -> int:
        """Return the bytes that a forward keeps, in bf16 with fused attention: 34 s h."""
        return 34 * tokens * self.hidden

    def parallel_ns(self, device: Device, *, tokens: int, ranks: int) -> int:
        """Return the time of a pass's collectives over tensor-parallel ranks.

        They are two all-reduces, each a ring that sends as much as two gathers.
        """
        return 2 * 2 * device.gather_ns(2 * tokens * self.hidden, ranks)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """An input embedding and an output layer of `size` words, each of width `hidden`."""

    hidden: int
    size: int

    @property
    def parameters(self) -> int:
        """Return the parameters of one of the two."""
        return self.hidden * self.size

    def forward_flops(self, tokens: int) -> int:
        """Return the operations of the output layer's forward; its backward has twice as many."""
        return 2 * tokens * self.parameters


def optimizer_ns(device: Device, parameters: int) -> int:
    """Return Adam's time in mixed precision, bound by memory.

    It reads and writes the fp32 weight and two moments, reads a gradient and writes a bf16 copy.
    """
    return parameters * (2 * 12 + 4 + 2) * 10**9 // device.memory_bytes_per_s


Ints = NDArray[np.int64]


def partition(layers_ns: Sequence[int], placement: Sequence[int]) -> tuple[int, ...]:
    """Return the number of layers of each stage.

    `layers_ns`: the layers' times in model order. `placement[s]`: the rank of stage s. Raises
    ValueError for negative times or fewer layers than stages.

    >>> partition([1, 1, 1, 1, 4], [0, 1, 2])
    (2, 2, 1)
    >>> partition([2] * 6 + [3] * 2, [0, 1, 0, 1])
    (2, 2, 2, 2)
    """
    stages = len(placement)
    if stages < 1 or len(layers_ns) < stages:
        raise ValueError(f"{len(layers_ns)} layers do not fill {stages} stages; use fewer stages")
    if min(layers_ns) < 0:
        raise ValueError(f"a layer takes {min(layers_ns)} ns; give times of 0 or more")
    until = np.concatenate(([0], np.cumsum(np.asarray(layers_ns, np.int64))))
    longest = least_longest_stage(until, stages)
    borders = _even_stages(until, stages, longest)
    if len(set(placement)) < stages:
        borders = _even_ranks(until, borders, placement, longest)
    return tuple(int(size) for size in np.diff(borders))


def least_longest_stage(until: Ints, stages: int) -> int:
    """Return F(L, m), the time of the slowest stage; `until[l]`: the time of the first l layers."""
    best = until.copy()
    for stage in range(1, stages):
        worse = best.copy()
        for end in range(stage + 1, len(until)):
            inner = slice(stage, end)
            worse[end] = np.maximum(best[inner], until[end] - until[inner]).min()
        best = worse
    return int(best[-1])


def _even_stages(until: Ints, stages: int, longest: int) -> list[int]:
    """Return the most even stages of which none is longer than `longest`: their borders."""
    count = len(until) - 1
    far = np.iinfo(np.int64).max // 2
    scale = max(1, int(until[-1]) // 2**20)
    squares = np.where(until <= longest, (until // scale) ** 2, far)
    squares[0] = far
    choices = []
    for stage in range(1, stages):
        total, choice = np.full(count + 1, far), np.zeros(count + 1, np.int64)
        for end in range(stage + 1, count + 1):
            inner = np.arange(stage, end)
            time = until[end] - until[inner]
            value = np.where(time <= longest, squares[inner] + (time // scale) ** 2, far)
            choice[end] = inner[np.argmin(value)]
            total[end] = min(far, int(value.min()))
        squares = total
        choices.append(choice)
    borders = [count]
    for choice in reversed(choices):
        borders.append(int(choice[borders[-1]]))
    return [0, *reversed(borders)]


def _even_ranks(
    until: Ints, borders: list[int], placement: Sequence[int], longest: int
) -> list[int]:
    """Return better borders, found by moving single layers; no stage gets longer than `longest`.

    The search minimizes the sum of two bounds on the time of a microbatch in the steady phase: the
    slowest rank, and the slowest stage of each chunk, summed over the chunks (the ranks go through
    a chunk together). A move takes a layer from a stage to another and shifts those in between.
    """
    stages = len(placement)
    first, last = np.triu_indices(stages - 1)
    at = np.arange(stages + 1)
    inside = (at > first[:, None]) & (at <= last[:, None] + 1)
    steps = np.concatenate((np.zeros((1, stages + 1), np.int64), inside * 1, inside * -1))
    holder = np.eye(max(placement) + 1, dtype=np.int64)[np.asarray(placement)]
    nth = np.array([list(placement[:stage]).count(placement[stage]) for stage in range(stages)])
    chunks = [np.flatnonzero(nth == chunk) for chunk in range(int(nth.max()) + 1)]
    current = np.asarray(borders)
    while True:
        moved = current + steps
        moved = moved[(np.diff(moved, axis=1) >= 1).all(axis=1)]
        times = np.diff(until[moved], axis=1)
        fits = times.max(axis=1) <= longest
        moved, times = moved[fits], times[fits]
        slowest = (times @ holder).max(axis=1)
        rounds = sum(times[:, group].max(axis=1) for group in chunks)
        spread = ((times / times.mean()) ** 2).sum(axis=1)
        # Row 0 keeps the borders, so another row is taken only if it is better.
        best = int(np.lexsort((spread, slowest + rounds))[0])
        if (slowest[best] + rounds[best], spread[best]) >= (slowest[0] + rounds[0], spread[0]):
            return [int(border) for border in current]
        current = moved[best]


# Rates are computed for an amount so large that rounding does not matter.
_MANY = 10**6
# The amount of tokens in the microbatch for which the layers are split.
_TYPICAL_TOKENS = 4096
# A parameter and its gradient in bf16 and fp32, and Adam's fp32 copy and moments.
_STATE_BYTES = 18


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model: encoder layers, then language-model layers, then the vocabulary.

    `encoder_tokens`: per tile. `tensor_parallel`: ranks that share every layer. `data_parallel`:
    replicas whose gradients are summed once a step.
    """

    layer: TransformerLayer
    layers: int
    vocabulary: Vocabulary
    encoder: TransformerLayer | None = None
    encoder_layers: int = 0
    encoder_tokens: int = 0
    tensor_parallel: int = 1
    data_parallel: int = 1
    device: Device = field(default_factory=Device)


@dataclass(frozen=True, slots=True)
class _Part:
    """A layer or a stage: its forward in ns and its activations in bytes, per thousand units."""

    forward: dict[str, int]
    activation: dict[str, int]
    parameters: int


def shape_profile(
    model: ModelShape, *, ranks: int, chunks: int = 1, shape: str = "loop"
) -> CostProfile:
    """Return the profile of a model spread over the ranks by `partition`, embedding in front.

    Resources: tokens, token_pairs (the sum of the squares of the sequences' lengths) and, with an
    encoder, tiles. The partition is made for a microbatch of one sequence of 4096 tokens and the
    number of tiles that give as many image tokens. Raises ValueError as `place` and `partition` do.
    """
    placement = place(ranks, chunks, "v" if shape == "v" else "loop")
    stages = _stages(model, placement)
    forward = tuple(CostFunction(0, stage.forward) for stage in stages)
    backward = tuple(CostFunction(0, {k: 2 * v for k, v in s.forward.items()}) for s in stages)
    device, by_stage = model.device, _parameters(model, stages)
    # A rank holds the parameters of all its chunks.
    by_rank = [0] * ranks
    for rank, count in zip(placement, by_stage, strict=True):
        by_rank[rank] += count
    # Once a step gradients are scattered in fp32, and parameters gathered in bf16.
    reduce = [
        sum(device.gather_ns(size * count, model.data_parallel) for size in (4, 2))
        for count in by_stage
    ]
    return CostProfile(
        ranks=ranks,
        placement=placement,
        passes={
            "F": forward,
            "B": backward,
            "I": forward,
            "W": forward,
            "REDUCE_GRAD": tuple(map(CostFunction, reduce)),
            "O": tuple(CostFunction(optimizer_ns(device, count)) for count in by_rank),
        },
        p2p_ns=2 * model.layer.hidden * _TYPICAL_TOKENS * 10**9 // device.link_bytes_per_s,
        buffers={"activation": tuple(CostFunction(0, stage.activation) for stage in stages)},
        parameter_bytes=tuple(_STATE_BYTES * count for count in by_rank),
    )


def _stages(model: ModelShape, placement: Sequence[int]) -> list[_Part]:
    """Return the stages into which `partition` splits the model, without the embedding."""
    typical = {
        "tokens": _TYPICAL_TOKENS,
        "token_pairs": _TYPICAL_TOKENS**2,
        "tiles": max(1, _TYPICAL_TOKENS // max(1, model.encoder_tokens)),
    }
    layers = _layers(model)
    times = [CostFunction(0, layer.forward).cost_of(typical) for layer in layers]
    sizes = partition(times, placement)
    return [
        _sum(layers[end - size : end]) for end, size in zip(accumulate(sizes), sizes, strict=True)
    ]


def _parameters(model: ModelShape, stages: Sequence[_Part]) -> list[int]:
    """Return the parameters of each stage on one tensor-parallel rank, the embedding on stage 0."""
    width = model.tensor_parallel
    counts = [stage.parameters // width for stage in stages]
    counts[0] += model.vocabulary.parameters // width
    return counts


def _layers(model: ModelShape) -> list[_Part]:
    """Return the encoder's layers, the language model's layers, and the output layer."""
    device, width, layer = model.device, model.tensor_parallel, model.layer

    def rate(flops: int) -> int:
        return device.compute_ns(flops * 1000) // (width * _MANY)

    sync = layer.parallel_ns(device, tokens=_MANY, ranks=width) * 1000 // _MANY
    inner = _Part(
        {
            "tokens": rate(layer.forward_flops(tokens=_MANY, pairs=0)) + sync,
            "token_pairs": rate(layer.forward_flops(tokens=0, pairs=_MANY)),
        },
        {"tokens": 1000 * layer.activation_bytes(1) // width},
        layer.parameters,
    )
    vocabulary = model.vocabulary
    output = _Part(
        {"tokens": rate(vocabulary.forward_flops(_MANY))},
        {"tokens": 1000 * 4 * vocabulary.size // width},
        vocabulary.parameters,
    )
    return [*_encoder_layers(model), *[inner] * model.layers, output]


def _encoder_layers(model: ModelShape) -> list[_Part]:
    if model.encoder is None:
        return []
    device, width, tokens = model.device, model.tensor_parallel, model.encoder_tokens
    flops = model.encoder.forward_flops(tokens=tokens, pairs=tokens**2)
    sync = model.encoder.parallel_ns(device, tokens=tokens, ranks=width)
    layer = _Part(
        {"tiles": device.compute_ns(flops * 1000) // width + 1000 * sync},
        {"tiles": 1000 * model.encoder.activation_bytes(tokens) // width},
        model.encoder.parameters,
    )
    return [layer] * model.encoder_layers


def _sum(layers: Sequence[_Part]) -> _Part:
    """Return the stage that these layers make."""
    return _Part(
        _sum_rates(layer.forward for layer in layers),
        _sum_rates(layer.activation for layer in layers),
        sum(layer.parameters for layer in layers),
    )


def _sum_rates(rates: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for rate in rates:
        total.update(rate)
    return dict(total)
