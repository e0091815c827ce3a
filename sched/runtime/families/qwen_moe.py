"""Qwen 2 and 3 with experts, and OLMoE: the routers' loss is the forward's."""

from .description import DecoderFamily

FAMILIES = {
    "qwen2_moe": DecoderFamily(routers=True),
    "qwen3_moe": DecoderFamily(window=True, routers=True),
    "olmoe": DecoderFamily(routers=True),
}
