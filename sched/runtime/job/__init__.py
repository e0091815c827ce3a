"""Start a job and compile what it runs: where its parts are, who meets whom, and its programs."""

from .arrangement import Arrangement, arrange
from .fields import NeededFields
from .programs import CompiledProgram, Programs
from .replanning import Replanner
from .start import all_come, meet, tokens_by, vocabulary_part
from .unit_programs import UnitPrograms

__all__ = [
    "Arrangement",
    "CompiledProgram",
    "NeededFields",
    "Programs",
    "Replanner",
    "UnitPrograms",
    "all_come",
    "arrange",
    "meet",
    "tokens_by",
    "vocabulary_part",
]
