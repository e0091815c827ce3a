"""Walk a rank's operations: wait for what each reads, run it, keep what it writes."""

from .board import Board
from .drive import PipelineStalledError, drive, leave_at_exit
from .walk import Waits, Walker, walk

__all__ = ["Board", "PipelineStalledError", "Waits", "Walker", "drive", "leave_at_exit", "walk"]
