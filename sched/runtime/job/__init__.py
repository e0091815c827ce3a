"""Start a job and compile what it runs: where its parts are, who meets whom, and its programs."""

from .arrangement import Arrangement, arrange
from .programs import CompiledProgram, Programs
from .start import all_come, meet, tokens_by, vocabulary_part

__all__ = [
    "Arrangement",
    "CompiledProgram",
    "Programs",
    "all_come",
    "arrange",
    "meet",
    "tokens_by",
    "vocabulary_part",
]
