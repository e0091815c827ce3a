"""Planning, wire format and coordinator: who computes which samples, when, and nothing else."""

from .planning import (
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
