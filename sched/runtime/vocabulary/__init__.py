"""Run vocabulary parallelism: output layer and input embedding divided over pipeline ranks."""

from .loss import LossOptions
from .parallel import Algorithm, Keep, VocabParallel
from .part import VocabularyPart, refuse_other_passes
from .shard import Sharding, VocabularyShard, join_state_dicts
from .step import MicrobatchLabels, VocabularyStep

__all__ = [
    "Algorithm",
    "Keep",
    "LossOptions",
    "MicrobatchLabels",
    "Sharding",
    "VocabParallel",
    "VocabularyPart",
    "VocabularyShard",
    "VocabularyStep",
    "join_state_dicts",
    "refuse_other_passes",
]
