"""Compile a program to each rank's operations: what each reads, writes and frees. Without torch."""

from .build import compile_program
from .collectives import Collective, collectives
from .ops import Op, Value
from .reductions import with_reductions

__all__ = ["Collective", "Op", "Value", "collectives", "compile_program", "with_reductions"]
