"""Sum gradients over data-parallel ranks, clip them, and drive FSDP2's own reduction."""

from .clip import clip_gradients
from .reduction import Reduction
from .sharded import is_sharded, refuse_wrapped

__all__ = ["Reduction", "clip_gradients", "is_sharded", "refuse_wrapped"]
