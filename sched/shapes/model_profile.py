"""Compute a cost profile from a model's shapes: a language model, perhaps with an image encoder.

Costs are rates per thousand units of a resource: tokens, pairs of tokens within a sequence (for
attention) and, with an encoder, tiles. The layers are split into stages by `partition`, and each
stage's rates are the sums of its layers' rates.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ..ir.program import place
from ..simulation.cost_profile import CostFunction, CostProfile
from .layers import Device, TransformerLayer, Vocabulary, data_parallel_ns, optimizer_ns
from .stages import partition

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
    reduce = [data_parallel_ns(device, count, model.data_parallel) for count in by_stage]
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
    times = [CostFunction(0, layer.forward).of(typical) for layer in layers]
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
