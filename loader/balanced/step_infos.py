"""Makes StepInfo, of a microbatch that was delivered and of a sampler's batch."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.problem.config import Microbatch, Planned
from ..step.info import StepInfo
from .fetching import MicrobatchFacts
from .over_budget import OverBudget

if TYPE_CHECKING:
    from ...balancer.protocol.messages import Batch


def info_of(
    batch: "Batch | MicrobatchFacts",
    epoch: int,
    ranks: int,
    resources: tuple[str, ...],
    over_budget: OverBudget,
    after: object,
) -> StepInfo:
    """Return the StepInfo of a microbatch; one without samples costs 0 of every resource."""
    costs = dict(zip(resources, batch.costs or (0,) * len(resources), strict=True))
    keys = batch.keys if isinstance(batch, MicrobatchFacts) else [each.key for each in batch.items]
    weights = batch.weights
    return StepInfo(
        epoch=epoch,
        step=batch.step,
        microbatch=batch.microbatch,
        microbatches=batch.microbatches,
        rank=batch.rank,
        ranks=ranks,
        samples=weights.samples,
        label_tokens=weights.label_tokens,
        rank_samples=weights.rank_samples,
        rank_label_tokens=weights.rank_label_tokens,
        step_samples=weights.step_samples,
        step_label_tokens=weights.step_label_tokens,
        keys=tuple(keys),
        holes=tuple([hole.key for hole in batch.holes]),
        images=costs.get("tiles", 1) > 0 if keys else False,
        costs=MappingProxyType(costs),
        over_budget=over_budget.exceeded(costs),
        after=after,
    )


@dataclass(frozen=True)
class SampledWindow:
    """A planned window: its first ordinal, and its samples' numbers and costs in order."""

    epoch: int
    start: int
    planned: Planned
    numbers: list[int]
    costs: Int64

    @cached_property
    def _ends(self) -> list[int]:
        """The number of a rank's batches up to each step's end; the same for every rank."""
        return list(accumulate(len(batch.ranks[0]) for batch in self.planned.batches))

    def info(
        self,
        rank: int,
        place: int,
        names: tuple[str, ...],
        over_budget: OverBudget,
        label_tokens: str,
    ) -> StepInfo:
        """Return the StepInfo of a rank's batch, by its place among those of the window.

        `names` are the costs' columns; that of `label_tokens` counts them, if it is there.
        """
        number = bisect_right(self._ends, place)
        batch = self.planned.batches[number]
        own = batch.ranks[rank]
        microbatch = place - (self._ends[number - 1] if number else 0)
        ordinals = own[microbatch].ordinals
        label = names.index(label_tokens) if label_tokens in names else -1
        sums = self.costs[self._rows(ordinals)].sum(axis=0).tolist()
        costs = dict(zip(names, sums, strict=True))
        whole = list(chain.from_iterable(batch.ranks))
        return StepInfo(
            epoch=self.epoch,
            step=batch.step,
            microbatch=microbatch,
            microbatches=len(own),
            rank=rank,
            ranks=len(batch.ranks),
            samples=len(ordinals),
            label_tokens=self._label_tokens([own[microbatch]], label),
            rank_samples=_count(own),
            rank_label_tokens=self._label_tokens(own, label),
            step_samples=_count(whole),
            step_label_tokens=self._label_tokens(whole, label),
            keys=tuple(str(self.numbers[row]) for row in self._rows(ordinals)),
            images=costs.get("tiles", 1) > 0 if ordinals else False,
            costs=MappingProxyType(costs),
            over_budget=over_budget.exceeded(costs),
        )

    def _rows(self, ordinals: Sequence[int]) -> list[int]:
        return [ordinal - self.start for ordinal in ordinals]

    def _label_tokens(self, microbatches: Sequence[Microbatch], label: int) -> int:
        """Return the label tokens in some microbatches; 0 where no column, -1, has them."""
        if label < 0:
            return 0
        rows = self._rows([ordinal for each in microbatches for ordinal in each.ordinals])
        return int(self.costs[rows, label].sum())


def _count(microbatches: Sequence[Microbatch]) -> int:
    return sum(len(each.ordinals) for each in microbatches)
