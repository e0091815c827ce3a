"""Simulate a program with its costs: a timeline in integer nanoseconds."""

from .cost_profile import CostFunction, CostProfile, dump_profile, load_profile, profile_costs
from .costs import Contention, Costs, unit_costs
from .simulator import simulate
from .timeline import Bubbles, Slot, Timeline

__all__ = [
    "Bubbles",
    "Contention",
    "CostFunction",
    "CostProfile",
    "Costs",
    "Slot",
    "Timeline",
    "dump_profile",
    "load_profile",
    "profile_costs",
    "simulate",
    "unit_costs",
]
