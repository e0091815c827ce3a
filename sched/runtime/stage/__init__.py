"""Run the stages of a model: forward, backward, and a backward split into two passes."""

from .calling import StateCapture
from .deferral import DeferredGradients, defer_linear_layers, deferring
from .merging import Merge, Merging, merging_for
from .modules import LossFunction, Running, StageOptions, Stages
from .splitting import split

__all__ = [
    "DeferredGradients",
    "LossFunction",
    "Merge",
    "Merging",
    "Running",
    "StageOptions",
    "Stages",
    "StateCapture",
    "defer_linear_layers",
    "deferring",
    "merging_for",
    "split",
]
