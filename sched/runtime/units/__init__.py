"""Units: encoders and language model on ranks of their own, with their own parallelism."""

from .agreement import agree_units, replicated
from .layout import Units
from .lists import compile_units, joined
from .place import UnitPlace, place_units
from .plan import UnitPlan, plan_units
from .saved import KnownPlans, known_plans
from .size import UnitSize

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
