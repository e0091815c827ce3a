"""Pipeline schedules: passes, programs, checking, simulation, transforms."""

from .checking.checker import check, problems
from .generators import dualpipev as gen_dualpipev
from .generators import gpipe as gen_gpipe
from .generators import interlaced as gen_interlaced
from .generators import interleaved as gen_interleaved
from .generators import one_f_one_b as gen_1f1b
from .generators import vhalf as gen_vhalf
from .generators import zb as gen_zb
from .generators import zbv as gen_zbv
from .ir.kinds import Kind, Need, kind, kinds, register_kind
from .ir.passes import NO_MICROBATCH, Pass, format_pass, parse_pass
from .ir.problem import Problem
from .ir.program import Barrier, Program, format_program, parse_program, place
from .ir.registry import Schedule, register, schedule, schedules
from .simulation.cost_profile import (
    CostFunction,
    CostProfile,
    dump_profile,
    load_profile,
    profile_costs,
)
from .simulation.costs import Costs, unit_costs
from .simulation.simulator import simulate
from .simulation.timeline import Bubbles, Slot, Timeline
from .transforms import vocabulary
from .transforms.lowering import lower
from .transforms.step_end import with_step_end

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
    "CostFunction",
    "CostProfile",
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
