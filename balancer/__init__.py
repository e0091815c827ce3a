"""Planning, runs, pools and parties: who computes which samples, when, and nothing else."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .planning.planner import Planner as Planner
    from .planning.planner import make_planner as make_planner
    from .planning.problem.balance import Balance as Balance
    from .planning.problem.config import GlobalBatch as GlobalBatch
    from .planning.problem.config import Microbatch as Microbatch
    from .planning.problem.config import PlanConfig as PlanConfig
    from .planning.problem.config import Planned as Planned
    from .planning.problem.config import Window as Window
    from .planning.problem.layout import Layout as Layout
    from .planning.problem.model_times import time_ns as time_ns
    from .planning.problem.shuffle import permutation as permutation
    from .planning.problem.values import Images as Images
    from .planning.problem.values import PipelineOrder as PipelineOrder
    from .planning.problem.values import Shapes as Shapes
    from .planning.problem.values import Work as Work

# Each is imported when it is first used (PEP 562): a loop loads what it uses.
_HOMES = {
    "Balance": ".planning.problem.balance",
    "GlobalBatch": ".planning.problem.config",
    "Images": ".planning.problem.values",
    "Layout": ".planning.problem.layout",
    "Microbatch": ".planning.problem.config",
    "PipelineOrder": ".planning.problem.values",
    "PlanConfig": ".planning.problem.config",
    "Planned": ".planning.problem.config",
    "Planner": ".planning.planner",
    "Shapes": ".planning.problem.values",
    "Window": ".planning.problem.config",
    "Work": ".planning.problem.values",
    "make_planner": ".planning.planner",
    "permutation": ".planning.problem.shuffle",
    "time_ns": ".planning.problem.model_times",
}

__all__ = [*_HOMES]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(_HOMES[name], __name__)
        public = globals()[name] = getattr(home, name)
        return public
