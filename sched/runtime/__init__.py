"""Run schedules on real tensors: the one package of `sched` that imports torch."""

from .checkpoint import load_checkpoint, newest_checkpoint, resumed_schedule, save_checkpoint
from .encoders import EncoderSpec
from .execution import PipelineStalledError
from .links import PeerLostError
from .pipeline import Pipeline, StepResult
from .stage import split
from .stage.generator import GeneratorSpec
from .units import Units, UnitSize
from .vocabulary import LossOptions, VocabParallel

__all__ = [
    "EncoderSpec",
    "GeneratorSpec",
    "LossOptions",
    "PeerLostError",
    "Pipeline",
    "PipelineStalledError",
    "StepResult",
    "UnitSize",
    "Units",
    "VocabParallel",
    "load_checkpoint",
    "newest_checkpoint",
    "resumed_schedule",
    "save_checkpoint",
    "split",
]
