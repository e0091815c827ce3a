"""The parameters whose gradients are summed over ranks, by when they are whole."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, slots=True)
class SummedParameters:
    """The gradients that this rank sums, over replicas and over copies.

    `stages`: by number; `sharded` are those of FSDP2, which sums by itself. `others`: encoder
    layers and the vocabulary's shard. `late`: the `id` of stages' parameters whose gradients are
    whole after the last pass only. `copies`: of which other ranks of the pipeline have copies.
    """

    stages: Mapping[int, nn.Module]
    others: Sequence[nn.Module]
    sharded: Collection[int]
    late: frozenset[int]
    copies: Collection[nn.Parameter]

    def of_stage(self, stage: int) -> Iterator[nn.Parameter]:
        """Yield those of a stage that are summed over replicas right after its last pass."""
        if stage not in self.sharded:
            yield from (p for p in self.stages[stage].parameters() if id(p) not in self.late)

    def after_passes(self) -> Iterator[nn.Parameter]:
        """Yield those that are summed over replicas when all passes are over."""
        yield from (p for module in self.others for p in module.parameters())
        for stage, module in self.stages.items():
            if stage not in self.sharded:
                yield from (p for p in module.parameters() if id(p) in self.late)

    def every(self, *, replicas: bool) -> Iterator[nn.Parameter]:
        """Yield all that are summed, over `replicas` too or over copies alone."""
        if replicas:
            for stage in self.stages:
                yield from self.of_stage(stage)
            yield from self.after_passes()
        yield from self.copies
