"""Transform programs: explicit communication, a generator, and what training makes of them."""

from .generator_passes import (
    generator_edges,
    has_generator,
    last_backwards,
    with_generator,
    without_generator_gradient,
    without_last_stage,
)
from .lowering import lower
from .training import (
    forward_only,
    with_reductions,
    with_step_end,
    with_whole_last_backward,
    without_encoder_backward,
)

__all__ = [
    "forward_only",
    "generator_edges",
    "has_generator",
    "last_backwards",
    "lower",
    "with_generator",
    "with_reductions",
    "with_step_end",
    "with_whole_last_backward",
    "without_encoder_backward",
    "without_generator_gradient",
    "without_last_stage",
]
