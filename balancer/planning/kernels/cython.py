"""The names of Cython that the sources of kernels use, for where Python runs them.

Cython knows itself what they mean: in `compiled.pyx` the name `cython` is its own.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Value = TypeVar("Value")

# Whether Cython has compiled the source that asks.
compiled = False
# What a function of C returns that returns nothing.
void: TypeAlias = None


def cfunc(function: Function) -> Function:
    """Mark a function of C: only other kernels call it."""
    return function


def exceptval(*, check: bool) -> Callable[[Function], Function]:  # noqa: ARG001
    """Mark a function of C that raises nothing, with check=False: no check follows the call."""
    return lambda function: function


def declare(_: type, value: Value) -> Value:
    """Return a constant, in C one of the type given."""
    return value


class _WithoutLock:
    """Marks a function or a block that touches no Python object and runs without Python's lock."""

    def __call__(self, function: Function) -> Function:
        return function

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


nogil = _WithoutLock()
