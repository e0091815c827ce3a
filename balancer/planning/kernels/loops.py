"""The kernels that planning calls: compiled, or the same sources as Python runs them.

Where there was no C compiler, the package is installed without its extensions. Plans are then the
same, bit by bit, and take a hundred times as long and more: the first plan says so on standard
error, and what would take minutes is refused.
"""

import functools
import sys
from typing import TYPE_CHECKING

try:
    from . import compiled  # type: ignore[attr-defined]  # of compiled.pyx

    IS_COMPILED = True
except ImportError:
    IS_COMPILED = False

__all__ = [
    "assign_rows",
    "best_tops",
    "check_work",
    "cut",
    "cut_in_two",
    "even_out",
    "fill_empty",
    "least_top",
    "level_steps",
    "padded_tops",
    "place",
    "run",
    "sample_and_filter",
    "shuffle",
    "stops",
    "swap",
    "two_ended",
    "two_opt",
]

if TYPE_CHECKING or not IS_COMPILED:
    from .assign import assign_rows
    from .isf import sample_and_filter, shuffle
    from .level import level_steps
    from .pack import place
    from .padded import best_tops, cut, cut_in_two, fill_empty, least_top, padded_tops, stops
    from .padded_exchange import even_out
    from .pipeline import run, two_opt
    from .shuffle import swap
    from .swap import two_ended
else:
    globals().update({name: vars(compiled)[name] for name in __all__ if name in vars(compiled)})

# A plan that Python would run for longer is refused.
MOST_PLAIN_S = 30.0
_REMEDY = (
    "install a C compiler (gcc) and counterpoise again (pip install --force-reinstall --no-deps "
    "counterpoise; make kernels in a checkout)"
)


def check_work(task: str, plain_s: float) -> None:
    """Refuse what takes Python too long, plain_s seconds by a rule of thumb, and needs compiling.

    The first call of a process says it on standard error if kernels are not compiled. Raises
    ValueError.
    """
    if IS_COMPILED:
        return
    _say_once()
    if plain_s > MOST_PLAIN_S:
        raise ValueError(
            f"{task} would take about {plain_s:,.0f} s, at most {MOST_PLAIN_S:.0f} s are allowed: "
            f"the planning kernels are not compiled and run as plain Python; {_REMEDY}"
        )


@functools.cache
def _say_once() -> None:
    sys.stderr.write(
        "counterpoise: the planning kernels are not compiled and run as plain Python: plans are "
        f"the same and take a hundred times as long or more; {_REMEDY}\n"
    )
