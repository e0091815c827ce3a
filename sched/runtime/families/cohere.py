"""Cohere's Command R and R7B: logits are scaled, windows by layer_types."""

from .description import DecoderFamily

FAMILIES = dict.fromkeys(
    ("cohere", "cohere2"), DecoderFamily(scale_logits=lambda config: config.logit_scale)
)
