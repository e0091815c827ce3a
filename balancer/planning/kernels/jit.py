"""The decorators of planning kernels, which compile them with numba where they are called.

Importing a kernel loads no numba: the first call of its compiled form does. A kernel may be run by
the interpreter until then (`interpreted_by`), with the same result: it computes with integers only,
the signed ones stay within 64 bits, and the unsigned ones wrap, as numpy's do. Signed and unsigned
ones never meet in one operation: numba would make them a float.

Both forms are the function with other globals: what calls a kernel in the one form is to call the
others in the same form.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType
from typing import Any, Literal, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])
# Runs a kernel's interpreted form with arguments, or its compiled one.
Interpreter = Callable[["PlanningKernel", tuple[Any, ...]], Any]

_interpreter: ContextVar[Interpreter | None] = ContextVar("interpreter", default=None)


def compiled(function: Function) -> Function:
    """Compile a kernel at its first call, and keep the code on disk where that is possible.

    numba keeps it beside the module, else in the user's cache folder, else in NUMBA_CACHE_DIR.
    Where none can be written, every process compiles it again (a few seconds).
    """
    return cast(Function, PlanningKernel(function, "never"))


def inlined(function: Function) -> Function:
    """Compile a small kernel as a part of each kernel that calls it.

    A call costs more than a few operations on integers, so the innermost loops cannot afford one.
    """
    return cast(Function, PlanningKernel(function, "always"))


@contextmanager
def interpreted_by(interpreter: Interpreter | None) -> Iterator[None]:
    """Run all kernels that this thread calls by `interpreter`; None: they run compiled."""
    token = _interpreter.set(interpreter)
    try:
        yield
    finally:
        _interpreter.reset(token)


class PlanningKernel:
    """A function of integers and arrays of them, in two forms: compiled, and interpreted."""

    __name__: str

    def __init__(self, function: Callable[..., Any], inline: Literal["never", "always"]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._inline = inline

    def __call__(self, *arguments: Any) -> Any:
        """Run the kernel, compiled unless this thread has an interpreter."""
        interpreter = _interpreter.get()
        return self.compiled(*arguments) if interpreter is None else interpreter(self, arguments)

    @functools.cached_property
    def compiled(self) -> Any:
        """The compiled form, numba's; made, not yet compiled, at the first use."""
        import numba as nb

        function = self._calling("compiled")
        try:
            return nb.njit(cache=True, inline=self._inline)(function)
        except RuntimeError:
            return nb.njit(inline=self._inline)(function)

    @functools.cached_property
    def interpreted(self) -> Callable[..., Any]:
        """The form that Python runs."""
        return self._calling("interpreted")

    def _calling(self, form: str) -> Callable[..., Any]:
        """Return the function with all kernels that it calls in one form."""
        kernel: Any = self._function
        known = dict(kernel.__globals__)
        for name in kernel.__code__.co_names:
            if isinstance(called := known.get(name), PlanningKernel):
                known[name] = getattr(called, form)
        made = FunctionType(
            kernel.__code__, known, kernel.__name__, kernel.__defaults__, kernel.__closure__
        )
        return functools.update_wrapper(made, kernel)
