"""Planning: turns a window's sample costs into global batches, the same on every machine."""

from .planner import Planner, make_planner
from .problem.balance import Balance
from .problem.config import GlobalBatch, Microbatch, PlanConfig, Planned, Window
from .problem.shuffle import permutation
from .warmup import compile_kernels

__all__ = [
    "Balance",
    "GlobalBatch",
    "Microbatch",
    "PlanConfig",
    "Planned",
    "Planner",
    "Window",
    "compile_kernels",
    "make_planner",
    "permutation",
]
