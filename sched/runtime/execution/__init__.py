"""Walk a rank's operations: wait for what each reads, run it, keep what it writes."""

from .board import Board, BoardSeat
from .drive import PipelineStalledError, drive, explain, timelines_folder, write_step
from .walk import Waits, Walker, walk

__all__ = [
    "Board",
    "BoardSeat",
    "PipelineStalledError",
    "Waits",
    "Walker",
    "drive",
    "explain",
    "timelines_folder",
    "walk",
    "write_step",
]
