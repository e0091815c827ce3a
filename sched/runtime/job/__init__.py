"""Start a job and compile what it runs: where its parts are, who meets whom, and its programs."""

from .arrangement import Arrangement, arrange
from .lanes import Lanes
from .programs import CompiledProgram, NeededFields, Programs
from .replanning import Replanner
from .start import connect, reading_of, report_missing_ranks, start_deadline, vocabulary_part
from .unit_programs import UnitPrograms

__all__ = [
    "Arrangement",
    "CompiledProgram",
    "Lanes",
    "NeededFields",
    "Programs",
    "Replanner",
    "UnitPrograms",
    "arrange",
    "connect",
    "reading_of",
    "report_missing_ranks",
    "start_deadline",
    "vocabulary_part",
]
