"""Run schedules on real tensors: the one package of `sched` that imports torch."""

from .checkpoint import load_checkpoint, newest_checkpoint, resumed_schedule, save_checkpoint
from .encoders.placement import EncoderSpec
from .encoders.travelling import TravellingImages
from .execution.drive import PipelineStalledError
from .links.process_groups import PeerLostError
from .pipeline import Pipeline, StepResult
from .stage.generator import GeneratorSpec
from .stage.splitting import split
from .units.layout import Units, UnitSize
from .vocabulary.loss import LossOptions
from .vocabulary.shard import VocabParallel

__all__ = [
    "EncoderSpec",
    "GeneratorSpec",
    "LossOptions",
    "PeerLostError",
    "Pipeline",
    "PipelineStalledError",
    "StepResult",
    "TravellingImages",
    "UnitSize",
    "Units",
    "VocabParallel",
    "load_checkpoint",
    "newest_checkpoint",
    "resumed_schedule",
    "save_checkpoint",
    "split",
]
