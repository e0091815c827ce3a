"""Compiling the planning kernels, on purpose and with a report: never a silent pause.

numba keeps compiled code beside the modules, or in the user's cache folder where that is not
writable, or in NUMBA_CACHE_DIR. The first use on a machine compiles (seconds),
later ones load (tenths of a second).
"""

import threading
import time
from collections.abc import Callable

import numpy as np


def compile_kernels(*families: str, report: Callable[[str], None] | None = None) -> float:
    """Compile or load the named families of kernels (default: all); return the seconds it took.

    report is called with one line before each family. Raises ValueError for an unknown name.
    """
    begin = time.perf_counter()
    for family in families or tuple(_WARM):
        if family not in _WARM:
            raise ValueError(f"kernel family {family!r} is unknown, there are {tuple(_WARM)}")
        if report is not None:
            report(f"compiling planning kernels: {family}")
        _WARM[family]()
    return time.perf_counter() - begin


def compile_for(grouping: str, report: Callable[[str], None]) -> None:
    """Compile or load what planning with a grouping needs; say so if that takes its time."""
    families = {"fixed": ("order",), "isf": ("order", "isf", "deal", "partition")}.get(
        grouping, ("order", "pack", "deal", "partition")
    )
    text = "compiling the planning kernels, once on this machine (some seconds)"
    saying = threading.Timer(1.0, report, [text])
    saying.start()
    try:
        compile_kernels(*families)
    finally:
        saying.cancel()


def _pack() -> None:
    from .grouping.balanced import balanced

    balanced(np.array([[1, 2], [3, 1], [2, 2], [1, 1]]), (4, 4))


def _isf() -> None:
    from .grouping.isf import isf

    isf(np.array([[1, 2], [3, 1]]), (4, 4))


def _order() -> None:
    from .kernels.shuffle import swap

    swap(np.arange(3), np.arange(2))


def _deal() -> None:
    from .partition.assign import deal

    deal("two_resource", np.array([[1, 2], [3, 1]]), 2)


def _partition() -> None:
    from .partition.multi_resource import two_resource

    two_resource(np.array([[1, 2], [3, 1], [2, 2]]), 2)


def _pipeline() -> None:
    from .ordering.evaluator import PipelineEvaluator

    PipelineEvaluator.one_forward_one_backward(2, np.ones((2, 3), dtype=np.int64)).two_opt(
        np.arange(3), 10
    )


_WARM: dict[str, Callable[[], None]] = {
    "pack": _pack,
    "isf": _isf,
    "order": _order,
    "deal": _deal,
    "partition": _partition,
    "pipeline": _pipeline,
}
