"""The kernels that planning calls: compiled, or the same sources as Python runs them.

Where there was no C compiler, the package is installed without its extensions. Plans are then the
same, bit by bit, and take some hundred times as long: whoever plans is told so, once, and what
would take minutes is refused.
"""

import functools
import sys
from typing import TYPE_CHECKING

try:
    from . import compiled  # type: ignore[attr-defined]  # of compiled.pyx

    IS_COMPILED = True
except ImportError:
    IS_COMPILED = False

if TYPE_CHECKING or not IS_COMPILED:
    from .assign import assign_rows
    from .isf import sample_and_filter, shuffle
    from .level import level_steps
    from .pack import place
    from .padded import best_tops, count_groups, cut, cut_in_two, fill_empty, least_top
    from .padded import padded_tops, stops
    from .padded_exchange import even_out
    from .partition import lower_maxima, place_vectors
    from .pipeline import run, two_opt
    from .shuffle import swap
    from .swap import two_ended
else:
    from .compiled import assign_rows, best_tops, count_groups, cut, cut_in_two, even_out
    from .compiled import fill_empty, least_top, level_steps, lower_maxima, padded_tops, place
    from .compiled import place_vectors, run, sample_and_filter, shuffle, stops, swap, two_ended
    from .compiled import two_opt

__all__ = [
    "assign_rows",
    "best_tops",
    "check_work",
    "count_groups",
    "cut",
    "cut_in_two",
    "even_out",
    "fill_empty",
    "least_top",
    "level_steps",
    "lower_maxima",
    "padded_tops",
    "place",
    "place_vectors",
    "run",
    "sample_and_filter",
    "shuffle",
    "stops",
    "swap",
    "two_ended",
    "two_opt",
]
