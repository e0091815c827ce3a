"""Planning, runs, pools and parties: who computes which samples, when, and nothing else."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .in_memory.partition import partition as partition
    from .planning.planner import Planner as Planner, make_planner as make_planner
    from .planning.problem.balance import Balance as Balance
    from .planning.problem.config import (
        GlobalBatch as GlobalBatch,
        Microbatch as Microbatch,
        PlanConfig as PlanConfig,
        Planned as Planned,
        Window as Window,
    )
    from .planning.problem.layout import Layout as Layout
    from .planning.problem.model_times import time_ns as time_ns
    from .planning.problem.shuffle import permutation as permutation
    from .planning.problem.values import (
        Images as Images,
        PipelineOrder as PipelineOrder,
        Shapes as Shapes,
        Work as Work,
    )

# Each is imported when it is first used (PEP 562): a loop loads what it uses.
_NAMES = {
    ".in_memory.partition": "partition",
    ".planning.planner": "Planner make_planner",
    ".planning.problem.balance": "Balance",
    ".planning.problem.config": "GlobalBatch Microbatch PlanConfig Planned Window",
    ".planning.problem.layout": "Layout",
    ".planning.problem.model_times": "time_ns",
    ".planning.problem.shuffle": "permutation",
    ".planning.problem.values": "Images PipelineOrder Shapes Work",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [*_HOMES]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(_HOMES[name], __name__)
        public = globals()[name] = getattr(home, name)
        return public
