"""Gemma 1, 2 and 3: the embedding scales by itself, logits are capped, rotary by type of layer."""

from .description import DecoderFamily

FAMILIES = {
    "gemma": DecoderFamily(),
    "gemma2": DecoderFamily(softcap=lambda config: config.final_logit_softcapping),
    "gemma3_text": DecoderFamily(
        softcap=lambda config: config.final_logit_softcapping, rotary_by_type=True
    ),
}
