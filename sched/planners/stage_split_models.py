"""Layers of vision-language models from shapes: the nine pairs of OmniBal (2025), Table 9.

A microbatch holds Q_v = 9 images of 1025 tokens for the encoder and Q_t = 4096 tokens for the
language model (section 5.2); the encoder hands 256 tokens an image on, in the language model's
width, after its last layer. Times are FLOPs on an A100 at half of its peak. `encoder_percent`
scales the encoder's speed: its matrices are narrower than a language model's, and the partitions
that the paper measured as best say by how much (docs/parallelism.md).
"""

from collections.abc import Sequence
from dataclasses import replace

from ..shapes import Device, TransformerLayer, Vocabulary
from .stage_split import LayerCost

IMAGES, IMAGE_TOKENS, HANDED_TOKENS, TEXT_TOKENS = 9, 1025, 256, 4096
_DEVICE = Device()
ENCODERS = {
    "internvit-6b": (TransformerLayer(3200, 12800), 45),
    "eva-clip-1b": (TransformerLayer(1408, 6144), 40),
    "eva-clip-4b": (TransformerLayer(1792, 15360), 64),
    "eva-clip-8b": (TransformerLayer(4096, 20480), 32),
    "eva-clip-18b": (TransformerLayer(5120, 25600), 48),
}
LANGUAGES = {
    "llama3-8b": (TransformerLayer(4096, 14336, 3, 2 * 1024), 32, 128256),
    "internlm2-20b": (TransformerLayer(6144, 16384, 3, 2 * 1024), 48, 92544),
    "yi-34b": (TransformerLayer(7168, 20480, 3, 2 * 1024), 60, 64000),
    "llama3-70b": (TransformerLayer(8192, 28672, 3, 2 * 1024), 80, 128256),
    "qwen1.5-110b": (TransformerLayer(8192, 49152, 3, 2 * 1024), 80, 152064),
}


def pair_layers(
    encoder: str,
    language: str,
    *,
    tp: int = 1,
    images: int = IMAGES,
    tokens: int = TEXT_TOKENS,
    encoder_percent: int = 100,
) -> tuple[LayerCost, ...]:
    """The layers of a pair, in order; the vocabulary's halves lie on the language model's ends.

    Raises ValueError for unknown names or sizes below one.

    >>> len(pair_layers("internvit-6b", "internlm2-20b"))
    93
    """
    for name, known in ((encoder, ENCODERS), (language, LANGUAGES)):
        if name not in known:
            raise ValueError(f"unknown model {name!r}; give one of {', '.join(known)}")
    if min(tp, images, tokens, encoder_percent) < 1:
        raise ValueError("TP, images, tokens and the encoder's speed must be 1 or more")
    return (
        *_encoder(encoder, language, tp, images, encoder_percent),
        *_language(language, tp, tokens),
    )


def _encoder(name: str, language: str, tp: int, images: int, percent: int) -> Sequence[LayerCost]:
    shape, count = ENCODERS[name]
    tokens = images * IMAGE_TOKENS
    flops = shape.forward_flops(tokens=tokens, pairs=images * IMAGE_TOKENS**2)
    sync = shape.parallel_ns(_DEVICE, tokens=tokens, ranks=tp)
    forward = _DEVICE.compute_ns(flops) * 100 // (tp * percent)
    layer = LayerCost(
        "encoder",
        forward + sync,
        2 * forward + sync,
        shape.parameters,
        2 * tokens * shape.hidden,
        _kept(shape, tokens, tp),
    )
    handed = 2 * images * HANDED_TOKENS * LANGUAGES[language][0].hidden
    return [*[layer] * (count - 1), replace(layer, output_bytes=handed)]


def _language(name: str, tp: int, tokens: int) -> Sequence[LayerCost]:
    shape, count, size = LANGUAGES[name]
    words = Vocabulary(shape.hidden, size)
    # Causal attention looks at half of the pairs.
    forward = _DEVICE.compute_ns(shape.forward_flops(tokens=tokens, pairs=tokens**2 // 2)) // tp
    sync = shape.parallel_ns(_DEVICE, tokens=tokens, ranks=tp)
    kept, handed = _kept(shape, tokens, tp), 2 * tokens * shape.hidden
    times = forward + sync, 2 * forward + sync
    layer = LayerCost("language", *times, shape.parameters, handed, kept)
    first = replace(layer, parameters=shape.parameters + words.parameters)
    output = _DEVICE.compute_ns(words.forward_flops(tokens)) // tp
    last = replace(
        first,
        forward_ns=times[0] + output,
        backward_ns=times[1] + 2 * output,
        activation_bytes=kept + 4 * tokens * size // tp,  # logits in fp32
    )
    return [first, *[layer] * (count - 2), last]


def _kept(shape: TransformerLayer, tokens: int, tp: int) -> int:
    """Activations without sequence parallelism: 10 of the 34 bytes are on every rank whole.

    Korthikanti et al. (2022), equation 2, with fused attention.
    """
    return shape.activation_bytes(tokens) * (10 * tp + 24) // (34 * tp)
