"""Sum gradients over data-parallel ranks, clip them, and drive FSDP2's own reduction."""

from .clip import clip_gradients
from .reduction import Reduction
from .sharded import is_sharded, refuse_wrapped
from .shared import SharedParameters, in_several

__all__ = [
    "Reduction",
    "SharedParameters",
    "clip_gradients",
    "in_several",
    "is_sharded",
    "refuse_wrapped",
]
