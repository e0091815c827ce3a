"""Run the stages of a model: forward, backward, and a backward split into two passes."""

from .deferral import DeferredGradients, defer_linear_layers, deferring
from .modules import LossFunction, Running, StageOptions, Stages

__all__ = [
    "DeferredGradients",
    "LossFunction",
    "Running",
    "StageOptions",
    "Stages",
    "defer_linear_layers",
    "deferring",
]
