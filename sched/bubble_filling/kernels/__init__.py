"""The walks of filling and replay: compiled, or as Python runs `walks`; see ADR 44."""

from typing import TYPE_CHECKING

try:
    from . import compiled  # type: ignore[attr-defined]  # of compiled.pyx

    IS_COMPILED = True
except ImportError:
    IS_COMPILED = False

if TYPE_CHECKING or not IS_COMPILED:
    from .walks import place, walk
else:
    from .compiled import place, walk

__all__ = ["IS_COMPILED", "place", "walk"]
