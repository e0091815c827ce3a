"""Planning, wire format and coordinator: who computes which samples, when, and nothing else."""

from .planning.planner import Planner, make_planner
from .planning.problem.balance import Balance
from .planning.problem.config import GlobalBatch, Microbatch, PlanConfig, Planned, Window
from .planning.problem.model_times import time_ns
from .planning.problem.shuffle import permutation
from .planning.warmup import compile_kernels

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
    "time_ns",
]
