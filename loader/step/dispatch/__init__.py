"""Images travel, not samples: each rank encodes as much, wherever the samples' text goes."""

from .images import ImageDispatch, StepImages

__all__ = ["ImageDispatch", "StepImages"]
