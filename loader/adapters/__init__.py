"""Fits the loader into training frameworks: `cp.adapters`.

Nothing here imports a framework before one of its objects is given.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .accelerate import prepare_accelerate
    from .megatron import megatron_iterators
    from .trainer import attach_trainer
    from .verl import partition_verl_batch

# Each is imported when it is first used, as in the packages above.
_HOMES = {
    "attach_trainer": ".trainer",
    "megatron_iterators": ".megatron",
    "partition_verl_batch": ".verl",
    "prepare_accelerate": ".accelerate",
}

__all__ = [
    "attach_trainer",
    "megatron_iterators",
    "partition_verl_batch",
    "prepare_accelerate",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = public = getattr(importlib.import_module(_HOMES[name], __name__), name)
        return public
