"""A generator: a second head behind the last stage, with a loss and gradients of its own."""

from .own import RankGenerator, rank_generator
from .part import GeneratorPart
from .spec import GeneratorSpec

__all__ = ["GeneratorPart", "GeneratorSpec", "RankGenerator", "rank_generator"]
