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
from .program import Barrier, Program, format_program, parse_program, place
from .registry import Schedule, register, schedule, schedules
from .simulate import simulate
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
    "Costs",
    "Kind",
    "Need",
    "Pass",
    "Problem",
    "Program",
    "Schedule",
    "Slot",
    "Timeline",
    "check",
    "format_pass",
    "format_program",
    "kind",
    "kinds",
    "lower",
    "parse_pass",
    "parse_program",
    "place",
    "problems",
    "register",
    "register_kind",
    "schedule",
    "schedules",
    "simulate",
    "unit_costs",
]
