"""The walk of filling: compiled, or as Python runs `walks`; see ADR 44."""

import functools
import sys
from typing import TYPE_CHECKING

try:
    from . import compiled  # type: ignore[attr-defined]  # noqa: F401 - of compiled.pyx

    IS_COMPILED = True
except ImportError:
    IS_COMPILED = False

if TYPE_CHECKING or not IS_COMPILED:
    from .walks import place
else:
    from .compiled import place

__all__ = ["IS_COMPILED", "check_work", "place"]

# What Python would run for longer is refused.
MOST_PLAIN_S = 30.0
_REMEDY = (
    "install a C compiler (gcc) and counterpoise again (pip install --force-reinstall --no-deps "
    "counterpoise; make kernels in a checkout)"
)


def check_work(task: str, plain_s: float) -> None:
    """Refuse what takes Python too long, plain_s seconds by a rule of thumb, and needs compiling.

    The first call of a process says it on standard error if the walks are not compiled. Raises
    ValueError.
    """
    if IS_COMPILED:
        return
    _say_once()
    if plain_s > MOST_PLAIN_S:
        raise ValueError(
            f"{task} would take about {plain_s:,.0f} s, at most {MOST_PLAIN_S:.0f} s are allowed: "
            f"the walks of bubble filling are not compiled and run as plain Python; {_REMEDY}"
        )


@functools.cache
def _say_once() -> None:
    sys.stderr.write(
        "counterpoise: the walks of bubble filling are not compiled and run as plain Python: "
        f"results are the same and take a hundred times as long; {_REMEDY}\n"
    )
