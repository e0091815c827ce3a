"""Pipeline schedules: passes, programs, checking, simulation, transforms."""

from . import (
    gen_1f1b,
    gen_dualpipev,
    gen_gpipe,
    gen_interlaced,
    gen_interleaved,
    gen_vhalf,
    gen_zb,
    gen_zbv,
    vocabulary,
)
from .check import check, problems
from .costs import Costs, unit_costs
from .kinds import Kind, Need, kind, kinds, register_kind
from .lower import lower
from .passes import NO_MICROBATCH, Pass, format_pass, parse_pass
from .problem import Problem
from .profile import CostProfile, Linear, dump_profile, load_profile, profile_costs
from .program import Barrier, Program, format_program, parse_program, place
from .registry import Schedule, register, schedule, schedules
from .simulate import simulate
from .step_end import with_step_end
from .timeline import Bubbles, Slot, Timeline

GENERATORS = (
    gen_1f1b,
    gen_dualpipev,
    gen_gpipe,
    gen_interlaced,
    gen_interleaved,
    gen_vhalf,
    gen_zb,
    gen_zbv,
    vocabulary,
)

__all__ = [
    "NO_MICROBATCH",
    "Barrier",
    "Bubbles",
    "CostProfile",
    "Costs",
    "Kind",
    "Linear",
    "Need",
    "Pass",
    "Problem",
    "Program",
    "Schedule",
    "Slot",
    "Timeline",
    "check",
    "dump_profile",
    "format_pass",
    "format_program",
    "kind",
    "kinds",
    "load_profile",
    "lower",
    "parse_pass",
    "parse_program",
    "place",
    "problems",
    "profile_costs",
    "register",
    "register_kind",
    "schedule",
    "schedules",
    "simulate",
    "unit_costs",
    "with_step_end",
]
