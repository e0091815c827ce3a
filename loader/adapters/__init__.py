"""Fits the loader into training frameworks: `cp.adapters`.

Nothing here imports a framework before one of its objects is given.
"""

from .accelerate import prepare_accelerate

__all__ = ["prepare_accelerate"]
