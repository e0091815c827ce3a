"""Save and load a pipeline's model and optimizer, whatever layout they are loaded on."""

from .files import (
    ResumedSchedule,
    load_checkpoint,
    newest_checkpoint,
    resumed_schedule,
    save_checkpoint,
)
from .joined import join_states, load_optimizer
from .own import HeldModules, RankState, load_model, own_state

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
