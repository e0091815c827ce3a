"""Pipeline schedules: passes, programs, checking, simulation, transforms."""

from . import gen_1f1b
from .kinds import Kind, Need, kind, kinds, register_kind
from .passes import NO_MICROBATCH, Pass, format_pass, parse_pass
from .program import Barrier, Program, format_program, parse_program, place
from .registry import Schedule, register, schedule, schedules
from .timeline import Bubbles, Slot, Timeline

GENERATORS = (gen_1f1b,)

__all__ = [
    "NO_MICROBATCH",
    "Barrier",
    "Bubbles",
    "Kind",
    "Need",
    "Pass",
    "Program",
    "Schedule",
    "Slot",
    "Timeline",
    "format_pass",
    "format_program",
    "kind",
    "kinds",
    "parse_pass",
    "parse_program",
    "place",
    "register",
    "register_kind",
    "schedule",
    "schedules",
]
