"""GPT-2: learned positions, no rotary embeddings."""

from .description import DecoderFamily

FAMILIES = {
    "gpt2": DecoderFamily(
        base="transformer",
        words="wte",
        positions="wpe",
        dropout="drop",
        layers="h",
        norm="ln_f",
        rotary="",
    )
}
