"""Planning, wire format and coordinator: who computes which samples, when, and nothing else."""

from .planning import (
    Balance,
    GlobalBatch,
    Microbatch,
    PlanConfig,
    Planned,
    Planner,
    Window,
    compile_kernels,
    make_planner,
    permutation,
)

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
