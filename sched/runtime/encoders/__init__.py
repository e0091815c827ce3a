"""Run encoders in the bubbles of a pipeline: their layers are passes, their features are edges."""

from .own import RankEncoders, rank_encoders, trained_program
from .part import EncoderPart, refuse_without_backward
from .placement import EncoderPlacement, is_encoder, place_encoders
from .routes import EncoderRoutes, find_joints, find_routes
from .spec import EncoderSpec

__all__ = [
    "EncoderPart",
    "EncoderPlacement",
    "EncoderRoutes",
    "EncoderSpec",
    "RankEncoders",
    "find_joints",
    "find_routes",
    "is_encoder",
    "place_encoders",
    "rank_encoders",
    "refuse_without_backward",
    "trained_program",
]
