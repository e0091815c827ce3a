"""Units: encoders and language model on ranks of their own, with different numbers of replicas."""

from .agreement import agree_units, replicated
from .layout import Units, UnitSize
from .lists import compile_units, joined
from .place import UnitPlace, place_units
from .plan import UnitPlan, plan_units
from .saved import KnownPlans, known_plans

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
