"""Qwen 2, 2.5 and 3: windows by layer_types of the config."""

from .description import DecoderFamily

FAMILIES = {"qwen2": DecoderFamily(), "qwen3": DecoderFamily()}
