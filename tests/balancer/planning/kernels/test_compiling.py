"""Kernels are compiled by name, with a cache or without one."""

import sys
from types import SimpleNamespace
from typing import Any

import numba
import pytest
from numba.core.registry import CPUDispatcher

from counterpoise.balancer.planning import warmup as kernels
from counterpoise.balancer.planning.kernels.isf import shuffle
from counterpoise.balancer.planning.kernels.jit import compiled
from counterpoise.balancer.planning.kernels.pipeline import run, two_opt
from counterpoise.balancer.planning.kernels.shuffle import swap


def test_compiling_is_reported() -> None:
    lines: list[str] = []
    seconds = kernels.compile_kernels("shuffle", "assign", report=lines.append)
    assert seconds >= 0
    assert lines == [f"compiling planning kernels: {name}" for name in ("shuffle", "assign")]
    with pytest.raises(ValueError, match="unknown"):
        kernels.compile_kernels("magic")


def test_the_names_stand_for_the_compiled_loops() -> None:
    kernels: tuple[Any, ...] = (run, two_opt, swap, shuffle)
    assert all(isinstance(kernel.compiled, CPUDispatcher) for kernel in kernels)


def test_without_a_writable_cache_kernels_still_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locator(*_: object, **settings: object) -> Any:
        if settings.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return numba.njit(*_, **settings)  # type: ignore[call-overload]

    monkeypatch.setitem(sys.modules, "numba", SimpleNamespace(njit=no_locator))
    assert compiled(lambda x: x + 1)(2) == 3
