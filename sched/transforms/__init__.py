"""Transform programs: explicit communication, a generator, the end of a step."""

from .generator_passes import (
    generator_edges,
    has_generator,
    last_backwards,
    with_generator,
    without_generator_gradient,
    without_last_stage,
)
from .lowering import lower
from .step_end import with_step_end

__all__ = [
    "generator_edges",
    "has_generator",
    "last_backwards",
    "lower",
    "with_generator",
    "with_step_end",
    "without_generator_gradient",
    "without_last_stage",
]
