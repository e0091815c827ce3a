"""Sum gradients over data-parallel ranks, clip them, and drive FSDP2's own reduction."""

from .clip import clip_gradients
from .divided import settle
from .earlier import EarlierGradients
from .reduction import Reduction
from .sharded import is_sharded, refuse_wrapped
from .shared import SharedParameters, in_several
from .summed import SummedParameters

__all__ = [
    "EarlierGradients",
    "Reduction",
    "SharedParameters",
    "SummedParameters",
    "clip_gradients",
    "in_several",
    "is_sharded",
    "refuse_wrapped",
    "settle",
]
