"""The decorator of planning kernels; it imports numba, so only kernels import it."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import numba as nb

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a kernel at its first call, and keep the code on disk where that is possible.

    numba keeps it beside the module, else in the user's cache folder, else in NUMBA_CACHE_DIR.
    Where none can be written, every process compiles it again (a few seconds).
    """
    return _compiled(function, inline="never")


def inlined(function: Function) -> Function:
    """Compile a small kernel as a part of each kernel that calls it.

    A call costs more than a few operations on integers, so the innermost loops cannot afford one.
    """
    return _compiled(function, inline="always")


def _compiled(function: Function, inline: Literal["never", "always"]) -> Function:
    try:
        return cast(Function, nb.njit(cache=True, inline=inline)(function))
    except RuntimeError:
        return cast(Function, nb.njit(inline=inline)(function))
