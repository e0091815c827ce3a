"""The decorator of planning kernels; importing this imports numba, so only kernels do."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba as nb

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a kernel at its first call, and keep the code on disk where that is possible.

    numba keeps it beside the module, else in the user's cache folder, else in NUMBA_CACHE_DIR.
    Where none can be written it is compiled anew in every process (a few seconds).
    """
    try:
        return cast(Function, nb.njit(cache=True)(function))
    except RuntimeError:
        return cast(Function, nb.njit(function))
