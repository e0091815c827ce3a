"""Run encoders in the bubbles of a pipeline: their layers are passes, their features are edges."""

from .layers import EncoderLayers
from .part import EncoderPart
from .routes import EncoderRoutes, entry_ranks, find_routes

__all__ = ["EncoderLayers", "EncoderPart", "EncoderRoutes", "entry_ranks", "find_routes"]
