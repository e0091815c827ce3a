"""The parameters whose gradients are summed over ranks, by when they are whole."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn

from .sharded import parameters_of_fsdp


@dataclass(frozen=True, slots=True)
class SummedParameters:
    """The gradients that this rank sums, over replicas and over copies.

    `stages`: by number; FSDP2 sums by itself what it shards of them. `others`: encoder layers and
    the vocabulary's shard. `lanes`: over which tensor parallelism divides them. `late`: the `id` of
    stages' parameters whose gradients are whole after the last pass only. `copies`: of which other
    ranks of the pipeline have copies.
    """

    stages: Mapping[int, nn.Module]
    others: Sequence[nn.Module]
    lanes: dist.ProcessGroup | None
    late: frozenset[int]
    copies: Collection[nn.Parameter]

    def of_stage(self, stage: int) -> Iterator[nn.Parameter]:
        """Yield those of a stage that are summed over replicas right after its last pass."""
        yield from (p for p in self._own(self.stages[stage]) if id(p) not in self.late)

    def after_passes(self) -> Iterator[nn.Parameter]:
        """Yield those that are summed over replicas when all passes are over."""
        yield from (p for module in self.others for p in module.parameters())
        for module in self.stages.values():
            yield from (p for p in self._own(module) if id(p) in self.late)

    def every(self, *, replicas: bool) -> Iterator[nn.Parameter]:
        """Yield all that are summed, over `replicas` too or over copies alone."""
        if replicas:
            for stage in self.stages:
                yield from self.of_stage(stage)
            yield from self.after_passes()
        yield from self.copies

    def _own(self, module: nn.Module) -> Iterator[nn.Parameter]:
        """Yield what FSDP2 does not sum."""
        others = parameters_of_fsdp(module, self.lanes)
        yield from (p for p in module.parameters() if id(p) not in others)
