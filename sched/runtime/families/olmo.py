"""OLMo 1 to 3: the third has windows by layer_types, and rotary embeddings by type of layer."""

from .description import DecoderFamily

FAMILIES = {
    "olmo": DecoderFamily(),
    "olmo2": DecoderFamily(),
    "olmo3": DecoderFamily(rotary_by_type=True),
}
