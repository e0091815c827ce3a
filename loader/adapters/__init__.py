"""Fits the loader into training frameworks: `cp.adapters`.

Nothing here imports a framework before one of its objects is given.
"""

from .accelerate import prepare_accelerate
from .megatron import megatron_iterators
from .trainer import attach_trainer

__all__ = ["attach_trainer", "megatron_iterators", "prepare_accelerate"]
