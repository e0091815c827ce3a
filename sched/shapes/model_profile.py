"""A cost profile from model shapes: a language model, perhaps with an image encoder in front."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..ir.program import place
from ..simulation.cost_profile import CostFunction, CostProfile
from .layers import Device, TransformerLayer, Vocabulary, data_parallel_ns, optimizer_ns
from .stages import partition

# Costs are linear, so a rate is what a thousand units take: of tokens, and of pairs of tokens
# within a sequence, for attention. Amounts are taken large enough that rounding does not matter.
_MANY = 10**6
# A parameter and its gradient in bf16 and fp32, and Adam's fp32 copy and moments.
_STATE_BYTES = 18


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model: encoder layers, then language-model layers, then the vocabulary.

    `encoder_tokens`: per tile. `tensor_parallel`: ranks that share every layer; `data_parallel`:
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
class _Piece:
    """One layer: its forward in ns and its activations in bytes, both per thousand units."""

    forward: dict[str, int]
    activation: dict[str, int]
    parameters: int


def shape_profile(
    model: ModelShape, *, ranks: int, chunks: int = 1, shape: str = "loop"
) -> CostProfile:
    """The profile of a model spread over the ranks by `partition`, embedding in front.

    Resources: tokens, token_pairs (the sum of the squares of the sequences' lengths) and, with an
    encoder, tiles. The partition is made for a microbatch of one sequence of 4096 tokens and as
    many tiles as give as many image tokens. Raises ValueError as `place` and `partition` do.
    """
    placement = place(ranks, chunks, "v" if shape == "v" else "loop")
    pieces = _pieces(model)
    typical = {"tokens": 4096, "token_pairs": 4096**2}
    typical["tiles"] = max(1, 4096 // max(1, model.encoder_tokens))
    times = [CostFunction(0, piece.forward).of(typical) for piece in pieces]
    stages, at = [], 0
    for size in partition(times, placement):
        stages.append(pieces[at : at + size])
        at += size
    forward = tuple(CostFunction(0, _sum(piece.forward for piece in stage)) for stage in stages)
    backward = tuple(
        CostFunction(0, {k: 2 * v for k, v in e.per_thousand.items()}) for e in forward
    )
    width = model.tensor_parallel
    summed = [sum(piece.parameters for piece in stage) // width for stage in stages]
    summed[0] += model.vocabulary.parameters // width
    held = [0] * ranks
    for rank, count in zip(placement, summed, strict=True):
        held[rank] += count
    device = model.device
    return CostProfile(
        ranks=ranks,
        placement=placement,
        passes={
            "F": forward,
            "B": backward,
            "I": forward,
            "W": forward,
            "REDUCE_GRAD": tuple(
                CostFunction(data_parallel_ns(device, count, model.data_parallel))
                for count in summed
            ),
            "O": tuple(CostFunction(optimizer_ns(device, count)) for count in held),
        },
        p2p_ns=2 * model.layer.hidden * typical["tokens"] * 10**9 // device.link_bytes_per_s,
        buffers={
            "activation": tuple(
                CostFunction(0, _sum(p.activation for p in stage)) for stage in stages
            )
        },
        parameter_bytes=tuple(_STATE_BYTES * count for count in held),
    )


def _pieces(model: ModelShape) -> list[_Piece]:
    """Encoder layers, language-model layers, output layer."""
    device, width, layer = model.device, model.tensor_parallel, model.layer

    def rate(flops: int) -> int:
        return device.compute_ns(flops * 1000) // (width * _MANY)

    sync = layer.parallel_ns(device, tokens=_MANY, ranks=width) * 1000 // _MANY
    inner = _Piece(
        {
            "tokens": rate(layer.forward_flops(tokens=_MANY, pairs=0)) + sync,
            "token_pairs": rate(layer.forward_flops(tokens=0, pairs=_MANY)),
        },
        {"tokens": 1000 * layer.activation_bytes(1) // width},
        layer.parameters,
    )
    words = model.vocabulary
    output = _Piece(
        {"tokens": rate(words.forward_flops(_MANY))},
        {"tokens": 1000 * 4 * words.size // width},
        words.parameters,
    )
    return [*_encoder(model), *[inner] * model.layers, output]


def _encoder(model: ModelShape) -> list[_Piece]:
    if model.encoder is None:
        return []
    device, width, tokens = model.device, model.tensor_parallel, model.encoder_tokens
    flops = model.encoder.forward_flops(tokens=tokens, pairs=tokens**2)
    sync = model.encoder.parallel_ns(device, tokens=tokens, ranks=width)
    piece = _Piece(
        {"tiles": device.compute_ns(flops * 1000) // width + 1000 * sync},
        {"tiles": 1000 * model.encoder.activation_bytes(tokens) // width},
        model.encoder.parameters,
    )
    return [piece] * model.encoder_layers


def _sum(rates: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for rate in rates:
        total.update(rate)
    return dict(total)
