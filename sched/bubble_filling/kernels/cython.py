"""The names of Cython that `walks` uses, for where Python runs it.

Cython knows itself what they mean: in `compiled.pyx` the name `cython` is its own.
"""

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

# Whether Cython has compiled the source that asks.
compiled = False


def cfunc(function: Function) -> Function:
    """Mark a function of C: only other kernels call it."""
    return function


def exceptval(*, check: bool) -> Callable[[Function], Function]:  # noqa: ARG001
    """Mark a function of C that raises nothing, with check=False: so nobody asks whether it did."""
    return lambda function: function


class _WithoutLock:
    """Marks a function or a block that touches no Python object and runs without Python's lock."""

    def __call__(self, function: Function) -> Function:
        return function

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


nogil = _WithoutLock()
