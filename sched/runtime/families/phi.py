"""Phi 1 to 3: the first ones drop out embeddings, and have a head with a bias."""

from .description import DecoderFamily

FAMILIES = {
    "phi": DecoderFamily(dropout="embed_dropout", norm="final_layernorm"),
    "phi3": DecoderFamily(window=True),
}
