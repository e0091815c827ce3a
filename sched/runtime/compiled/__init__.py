"""Compile a program to each rank's operations: what each reads, writes and frees. Without torch."""

from .build import compile_program, lowered
from .collectives import Collective, collectives
from .deliveries import with_deliveries
from .forward import forward_only
from .frozen_encoders import without_encoder_backward
from .last_backward import with_whole_last_backward
from .ops import Op, Value
from .reductions import with_reductions
from .waiting import Pipelines, Standing

__all__ = [
    "Collective",
    "Op",
    "Pipelines",
    "Standing",
    "Value",
    "collectives",
    "compile_program",
    "forward_only",
    "lowered",
    "with_deliveries",
    "with_reductions",
    "with_whole_last_backward",
    "without_encoder_backward",
]
