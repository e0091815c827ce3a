"""The fields of a microbatch that each rank needs, from what runs there."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..encoders import RankEncoders
from ..stage import StageOptions
from ..stage.generator import RankGenerator
from ..vocabulary import VocabularyPart


@dataclass(frozen=True, slots=True)
class NeededFields:
    """The fields of a microbatch that each rank needs.

    `placement`: the rank of each stage.
    """

    placement: Sequence[int]
    options: StageOptions
    vocabulary: VocabularyPart | None
    encoders: RankEncoders
    generator: RankGenerator

    def of(self, rank: int, *, encodes: bool = True, generates: bool = True) -> frozenset[str]:
        """Return the fields that a rank of the program needs.

        `encodes`, `generates`: False for a microbatch that another rank does this of.
        """
        beside = self.generator.fields(rank, self.placement[-1], generates=generates)
        if encodes:
            beside |= self.encoders.fields(rank)
        if rank not in self.placement:
            return frozenset(beside)
        wanted = set(self.options.extras) | beside
        if rank == self.placement[0] and not (self.vocabulary and self.vocabulary.shard.embedding):
            wanted |= set(self.options.inputs)
        if rank == self.placement[-1] and self.options.loss is not None:
            wanted |= set(self.options.labels)
        if self.vocabulary is not None:
            wanted |= set(self.vocabulary.fields.values())
        return frozenset(wanted)
