"""Pipeline schedules: generate programs, check them, simulate them, and transform them."""

from . import generators as generators
from .bubble_filling.filled_program import EncoderTimes, encoder_times, with_encoders
from .checking import Problem, check, problems
from .generators.blocks import Pace
from .generators.vocabulary import vocabulary
from .ir.kinds import Kind, Need, kind, kinds, register_kind
from .ir.program import (
    NO_MICROBATCH,
    Barrier,
    Edge,
    Pass,
    Program,
    format_pass,
    format_program,
    parse_pass,
    parse_program,
    place,
)
from .ir.registry import Schedule, register, schedule, schedules
from .replanning.decision import PlanChange, Replan
from .simulation.cost_profile import (
    CostFunction,
    CostProfile,
    dump_profile,
    load_profile,
    profile_costs,
)
from .simulation.costs import Costs, unit_costs
from .simulation.measured import hidden_share, measured_costs
from .simulation.simulator import simulate
from .simulation.timeline import Bubbles, Slot, Timeline
from .transforms.lowering import lower
from .transforms.training import with_step_end

__all__ = [
    "NO_MICROBATCH", "Barrier", "Bubbles", "CostFunction", "CostProfile", "Costs", "Edge",
    "EncoderTimes", "Kind", "Need", "Pace", "Pass", "PlanChange", "Problem", "Program",
    "Replan", "Schedule", "Slot", "Timeline", "check", "dump_profile", "encoder_times",
    "format_pass", "format_program", "hidden_share", "kind", "kinds", "load_profile", "lower",
    "measured_costs", "parse_pass", "parse_program", "place", "problems", "profile_costs",
    "register", "register_kind", "schedule", "schedules", "simulate", "unit_costs", "vocabulary",
    "with_encoders", "with_step_end",
]  # fmt: skip
