"""Granite: embeddings and logits are scaled in forward, residuals in the layers."""

from .description import DecoderFamily

FAMILIES = {
    "granite": DecoderFamily(
        scale_words=lambda config: config.embedding_multiplier,
        scale_logits=lambda config: 1 / config.logits_scaling,
    ),
}
