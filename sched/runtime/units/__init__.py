"""Units: encoders and language model on ranks of their own, with their own parallelism."""

from .layout import Units, UnitSize
from .lists import compile_units, joined
from .place import UnitPlace, agree_units, place_units, replicated
from .plan import KnownPlans, UnitPlan, known_plans, plan_units

__all__ = [
    "KnownPlans",
    "UnitPlace",
    "UnitPlan",
    "UnitSize",
    "Units",
    "agree_units",
    "compile_units",
    "joined",
    "known_plans",
    "place_units",
    "plan_units",
    "replicated",
]
