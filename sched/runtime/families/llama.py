"""Llama, and StableLM, whose forward does the same."""

from .description import DecoderFamily

FAMILIES = {"llama": DecoderFamily(), "stablelm": DecoderFamily()}
