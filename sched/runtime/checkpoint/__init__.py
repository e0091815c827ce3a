"""Save and load a pipeline's model and optimizer, whatever layout they are loaded on."""

from .files import load_checkpoint, newest_checkpoint, save_checkpoint
from .held import HeldModules
from .joined import join_states
from .optimizer import load_optimizer
from .own import RankState, load_model, own_state
from .plans import ResumedSchedule, resumed_schedule

__all__ = [
    "HeldModules",
    "RankState",
    "ResumedSchedule",
    "join_states",
    "load_checkpoint",
    "load_model",
    "load_optimizer",
    "newest_checkpoint",
    "own_state",
    "resumed_schedule",
    "save_checkpoint",
]
