"""Mistral and Mixtral: a window of all layers, where the config has one."""

from .description import DecoderFamily

FAMILIES = {
    "mistral": DecoderFamily(window=True),
    "mixtral": DecoderFamily(window=True, routers=True),
}
