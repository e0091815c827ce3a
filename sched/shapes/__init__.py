"""Compute times, bytes and cost profiles from model shapes."""

from .layers import Device, TransformerLayer, Vocabulary, vit_layer
from .model_profile import ModelShape, shape_profile
from .stages import partition

__all__ = [
    "Device",
    "ModelShape",
    "TransformerLayer",
    "Vocabulary",
    "partition",
    "shape_profile",
    "vit_layer",
]
