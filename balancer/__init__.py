"""Planning, wire format and coordinator: who computes which samples, when, and nothing else."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .planning.planner import Planner, make_planner
    from .planning.problem.balance import Balance
    from .planning.problem.config import GlobalBatch, Microbatch, PlanConfig, Planned, Window
    from .planning.problem.layout import Layout
    from .planning.problem.model_times import time_ns
    from .planning.problem.shuffle import permutation

# Each is imported when it is first used (PEP 562): a loop loads what it uses.
_HOMES = {
    "Balance": ".planning.problem.balance",
    "GlobalBatch": ".planning.problem.config",
    "Layout": ".planning.problem.layout",
    "Microbatch": ".planning.problem.config",
    "PlanConfig": ".planning.problem.config",
    "Planned": ".planning.problem.config",
    "Planner": ".planning.planner",
    "Window": ".planning.problem.config",
    "make_planner": ".planning.planner",
    "permutation": ".planning.problem.shuffle",
    "time_ns": ".planning.problem.model_times",
}

__all__ = [
    "Balance",
    "GlobalBatch",
    "Layout",
    "Microbatch",
    "PlanConfig",
    "Planned",
    "Planner",
    "Window",
    "make_planner",
    "permutation",
    "time_ns",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(_HOMES[name], __name__)
        found = globals()[name] = getattr(home, name)
        return found
