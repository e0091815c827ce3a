"""SmolLM3: layers that leave out rotary embeddings do so by themselves."""

from .description import DecoderFamily

FAMILIES = {"smollm3": DecoderFamily()}
