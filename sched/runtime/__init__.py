"""Run schedules on real tensors: the one package of `sched` that imports torch."""

from .checkpoint import load_checkpoint, newest_checkpoint, resumed_schedule, save_checkpoint
from .encoders.placement import EncoderSpec
from .encoders.travelling import TravellingImages
from .execution.drive import PipelineStalledError
from .execution.walk import offer
from .families.adapted import Adapted
from .families.description import DecoderFamily, ImageFamily
from .families.table import adapt, families
from .links.process_groups import PeerLostError
from .pipeline import Pipeline, StepResult
from .settings import HiddenStates, StageModules, StageOptions, StepLoss
from .stage.generator import GeneratorSpec
from .stage.splitting import split
from .tensor.overlap import OverlappedColwiseParallel, OverlappedRowwiseParallel
from .units.layout import Units, UnitSize
from .vocabulary.loss import LossOptions
from .vocabulary.shard import VocabParallel

__all__ = [
    "Adapted", "DecoderFamily", "EncoderSpec", "GeneratorSpec", "HiddenStates", "ImageFamily",
    "LossOptions", "OverlappedColwiseParallel", "OverlappedRowwiseParallel", "PeerLostError",
    "Pipeline", "PipelineStalledError", "StageModules", "StageOptions", "StepLoss", "StepResult",
    "TravellingImages", "UnitSize", "Units", "VocabParallel", "adapt", "families",
    "load_checkpoint", "newest_checkpoint", "offer", "resumed_schedule", "save_checkpoint", "split",
]  # fmt: skip
