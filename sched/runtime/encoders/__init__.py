"""Run encoders in the bubbles of a pipeline: their layers are passes, their features are edges."""

from .part import EncoderPart, RankEncoders, rank_encoders, refuse_without_backward, trained_program
from .placement import EncoderPlacement, EncoderSpec, is_encoder, place_encoders
from .routes import EncoderRoutes, find_joints, find_routes

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
