"""Compiles the planning kernels ahead of use and reports it, so that planning never just pauses.

numba keeps compiled code beside the modules, or in the user's cache folder where that is not
writable, or in NUMBA_CACHE_DIR. The first use on a machine compiles (seconds),
later ones load (tenths of a second).
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .problem.config import PlanConfig


def compile_kernels(*families: str, report: Callable[[str], None] | None = None) -> float:
    """Compile or load the named families of kernels (default: all); return the seconds it took.

    report is called with one line before each family. Raises ValueError for an unknown name.
    """
    begin = time.perf_counter()
    for family in families or tuple(_USES):
        if family not in _USES:
            raise ValueError(f"kernel family {family!r} is unknown, there are {tuple(_USES)}")
        if report is not None:
            report(f"compiling planning kernels: {family}")
        _USES[family]()
    return time.perf_counter() - begin


def compile_for(
    grouping: str, report: Callable[[str], object], padded: bool = False, ordered: bool = False
) -> None:
    """Compile or load the kernels of a grouping; report it, once, if they are really compiled."""
    families = {
        "fixed": ("shuffle", "assign"),
        "isf": ("shuffle", "isf", "assign"),
    }.get(grouping, ("shuffle", "pack", "assign", "level"))
    if padded:
        families = ("shuffle", "padded", "assign")
    if ordered:
        families = (*families, "pipeline")
    from numba.core import event  # typed by nobody

    with event.install_listener("numba:compile", _listener(report)):
        compile_kernels(*families)


def _listener(report: Callable[[str], object]) -> Any:
    """Return a listener to numba that reports the first of all compilations."""
    from numba.core import event

    class Listener(event.Listener):
        has_told = False

        def on_start(self, _: object) -> None:
            if not self.has_told:
                self.has_told = True
                report("compiling the planning kernels, once on this machine (some seconds)")

        def on_end(self, _: object) -> None:
            pass

    return Listener()


def prepare_planning(plan: PlanConfig) -> None:
    """Compile or load what a job's planning needs, before anybody waits for it."""
    compile_for(
        plan.grouping,
        lambda text: sys.stderr.write(f"counterpoise: {text}\n"),
        padded=plan.plans_rows,
        ordered=plan.ordering != "given",
    )


def _pack() -> None:
    from .grouping.balanced import balanced

    balanced(np.array([[1, 2], [3, 1], [2, 2], [1, 1]]), (4, 4))


def _isf() -> None:
    from .grouping.isf import isf

    isf(np.array([[1, 2], [3, 1]]), (4, 4))


def _shuffle() -> None:
    from .kernels.shuffle import swap

    swap(np.arange(3), np.arange(2))


def _assign() -> None:
    from .partition.by_name import micro_steps

    micro_steps(np.array([[1, 2], [3, 1]]), 2, 0)


def _level() -> None:
    from .partition.level import level

    config = PlanConfig(2, 3, 1, ("tiles", "tokens"), (4, 4))
    costs, cells = np.array([[1, 2], [3, 1], [2, 2]]), np.array([[[0], [1]]])
    level(config, costs, np.array([0, 1, 0]), cells)


def _padded() -> None:
    from .grouping.padded import padded

    config = PlanConfig(2, 8, 2, ("tiles", "tokens"), (99, 99), padded=("tokens",))
    padded(config, np.array([[1, 9], [3, 1], [2, 5], [1, 1], [9, 2], [1, 4], [5, 5], [1, 8]]), 4)


def _partition() -> None:
    from .partition.multi_resource import multi_resource

    multi_resource(np.array([[1, 2], [3, 1], [2, 2]]), 2)


def _pipeline() -> None:
    from .ordering.evaluator import PipelineEvaluator

    PipelineEvaluator.one_forward_one_backward(2, np.ones((2, 3), dtype=np.int64)).two_opt(
        np.arange(3), 10
    )


# The smallest call that reaches every kernel of a family
_USES: dict[str, Callable[[], None]] = {
    "pack": _pack,
    "isf": _isf,
    "shuffle": _shuffle,
    "assign": _assign,
    "level": _level,
    "padded": _padded,
    "partition": _partition,
    "pipeline": _pipeline,
}
