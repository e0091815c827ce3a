"""Plan a pipeline again when its steps take other times than planned. No clock, and no torch."""

from .decision import (
    Decision,
    MakeProgram,
    PlanChange,
    PlanState,
    Replan,
    digest_of,
    dump_state,
    first_state,
    load_state,
    observe,
    reordered,
    settled,
    step_ns,
    taken,
)
from .observation import Observation, StepKeys, expected_step, keys_of, nearby

__all__ = [
    "Decision",
    "MakeProgram",
    "Observation",
    "PlanChange",
    "PlanState",
    "Replan",
    "StepKeys",
    "digest_of",
    "dump_state",
    "expected_step",
    "first_state",
    "keys_of",
    "load_state",
    "nearby",
    "observe",
    "reordered",
    "settled",
    "step_ns",
    "taken",
]
