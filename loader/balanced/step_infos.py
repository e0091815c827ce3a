"""Makes the StepInfo of a microbatch, and reports those that are over a budget."""

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import structs

from ..step.info import StepInfo
from .arrivals import MicrobatchFacts

if TYPE_CHECKING:
    from ...balancer.protocol.messages import Batch

logger = logging.getLogger(__name__)


class OverBudget:
    """Names the budgets that microbatches exceed; logs the first, and the count at the end.

    Such a microbatch is a single sample, which is over budget alone (oversize="alone").
    """

    def __init__(self, budgets: Mapping[str, int]) -> None:
        self._budgets = budgets
        self._microbatches = 0
        self._over = 0
        self._has_told = False

    def exceeded(self, costs: Mapping[str, int]) -> tuple[str, ...]:
        """Return the resources of which a microbatch has more than their budget.

        >>> OverBudget({"tokens": 9}).exceeded({"tiles": 40, "tokens": 12})
        ('tokens',)
        """
        return tuple(name for name, most in self._budgets.items() if costs.get(name, 0) > most)

    def take(self, over: Sequence[str], costs: Mapping[str, int], keys: Sequence[str]) -> None:
        """Count a microbatch that was handed out; the first one over budget is logged."""
        self._microbatches += 1
        self._over += bool(over)
        if over and self._over == 1 and not self._has_told:
            figures = ", ".join(
                f"{costs[name]:,} {name} of {self._budgets[name]:,}" for name in over
            )
            logger.warning(
                "sample %r is over budget (%s) and has a microbatch of its own: larger budgets "
                "avoid it, oversize='refuse' leaves such samples out, 'error' ends the run",
                keys[0] if keys else "", figures,
            )  # fmt: skip

    def end_epoch(self) -> None:
        """Log, once, how many microbatches of an epoch were over budget, and count from 0 again."""
        if self._over and not self._has_told:
            self._has_told = True
            logger.warning(
                "%d of this process' %d microbatches of the epoch were over budget",
                self._over, self._microbatches,
            )  # fmt: skip
        self._microbatches = self._over = 0


def keys_of(batch: "Batch | MicrobatchFacts") -> tuple[str, ...]:
    """Return the keys of a microbatch's samples."""
    return batch.keys if isinstance(batch, MicrobatchFacts) else tuple(e.key for e in batch.items)


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
    keys = keys_of(batch)
    return StepInfo(
        epoch=epoch,
        step=batch.step,
        microbatch=batch.microbatch,
        microbatches=batch.microbatches,
        rank=batch.rank,
        ranks=ranks,
        **structs.asdict(batch.weights),
        keys=keys,
        holes=tuple([hole.key for hole in batch.holes]),
        images=costs.get("tiles", 1) > 0 if keys else False,
        costs=MappingProxyType(costs),
        over_budget=over_budget.exceeded(costs),
        after=after,
    )
