"""Plans a process' first windows without numba, which it loads meanwhile, if there is more to plan.

To load numba and the compiled kernels takes longer than a small window takes Python. Plans are the
same, bit by bit, either way; so where loops run is decided by what they cost.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .kernels.jit import Interpreter, PlanningKernel, interpreted_by
from .planner import Planner
from .problem.config import PlanConfig
from .warmup import prepare_planning

# Interpreted loops that took this much CPU time in all are worth compiled ones.
WORTH_LOADING_S = 0.1
# Costs (samples x resources) of a window that the interpreter plans in about the time that it takes
# to load compiled kernels; padded windows take six times as long as others.
MOST_ELEMENTS, MOST_PADDED = 1024, 128
# Of the kernels of such windows none has as large an array; the shuffle of a large epoch has.
LARGE_ARRAY = 2**16
# While compiled loops are loaded, who serves has Python's lock back this soon.
_SWITCH_S = 0.0005


def interpreter_of(plan: PlanConfig, clock: Callable[[], float]) -> Interpreter:
    """Return what runs the kernels of a process that plans nothing else.

    For large windows, and for an ordering, which searches long however small the window, kernels
    are compiled or loaded now: ranks give up a balancer that pauses for that while it serves.
    """
    first = FirstPlans(functools.partial(prepare_planning, plan), clock)
    most = MOST_PADDED if plan.plans_rows else MOST_ELEMENTS
    elements = Planner(plan).window_samples * len(plan.resources)
    if elements > most or plan.ordering != "given":
        first.load()
    return first


class FirstPlans:
    """Runs kernels interpreted, as an `Interpreter` of `kernels.jit`, until they are compiled.

    load: compiles what is needed; called once, in a thread of its own. clock: CPU seconds of the
    thread that plans.
    """

    def __init__(self, load: Callable[[], object], clock: Callable[[], float]) -> None:
        self._load = load
        self._clock = clock
        self._spent_s = 0.0
        self._loading: threading.Thread | None = None
        self._is_loaded = False

    def __call__(self, kernel: PlanningKernel, arguments: tuple[Any, ...]) -> Any:
        """Run one kernel."""
        if self._is_loaded or any(np.size(each) > LARGE_ARRAY for each in _arrays(arguments)):
            return kernel.compiled(*arguments)
        begun = self._clock()
        with np.errstate(over="ignore"):  # what is unsigned wraps, as in compiled loops
            found = kernel.interpreted(*arguments)
        self._spent_s += self._clock() - begun
        if self._spent_s > WORTH_LOADING_S and self._loading is None:
            self._loading = threading.Thread(target=self._load_beside, daemon=True)
            self._loading.start()
        return found

    def wait(self) -> None:
        """Wait until the compiled loops that are being loaded are there."""
        if self._loading is not None:
            self._loading.join()

    def load(self) -> None:
        """Compile or load all kernels that are needed; they run compiled from then on."""
        with interpreted_by(None):  # free-threaded Pythons give threads their starter's
            self._load()
        self._is_loaded = True

    def _load_beside(self) -> None:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        try:
            self.load()
        finally:
            sys.setswitchinterval(interval)


def _arrays(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """Yield arguments, and the arrays of those that are Slots."""
    for each in arguments:
        yield from _arrays(each) if isinstance(each, tuple) else (each,)
