"""Makes the StepInfo of a microbatch, and reports those that are over a budget."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from msgspec import structs

from ...balancer.run.tasks import MicrobatchFacts
from ...workers.mixture.order import find_source
from ..step.info import StepInfo

logger = logging.getLogger(__name__)
# The first microbatches of several samples, in which padding that nothing counts is looked for.
LOOKED_AT = 16
# Values at the ends of a tensor's rows, the most frequent ones, that may be its filling.
FILLS = 2
# Tokens that a collate_fn may add to each sample: its beginning, its end, a separator.
MARKS = 4
# Deeper batches are not looked into.
DEPTH = 3


class OverBudget:
    """Names the budgets that microbatches exceed; logs the first, and the count at the end.

    Such a microbatch is a single sample, which is over budget alone (oversize="alone"). Where the
    budgets count the sum of samples, and collate_fn pads them, the first such batch over budget is
    logged, too. padded: the resources whose padding is counted.
    """

    def __init__(self, budgets: Mapping[str, int | None], padded: Sequence[str] = ()) -> None:
        self._budgets = {name: most for name, most in budgets.items() if most is not None}
        self._sums = {name: most for name, most in self._budgets.items() if name not in padded}
        self._looks = LOOKED_AT if self._sums else 0
        self._microbatches = 0
        self._over = 0
        self._has_told = False

    def exceeded(self, costs: Mapping[str, int]) -> tuple[str, ...]:
        """Return the resources of which a microbatch has more than their budget.

        >>> OverBudget({"tokens": 9}).exceeded({"tiles": 40, "tokens": 12})
        ('tokens',)
        """
        return tuple(name for name, most in self._budgets.items() if costs.get(name, 0) > most)

    def take_batch(self, batch: Any, info: StepInfo) -> None:
        """Do what `take` does; the first batch that is padded beyond a budget is logged, too."""
        self._look(batch, info.costs, len(info.keys))
        self.take(info.over_budget, info.costs, info.keys)

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

    def _look(self, batch: Any, costs: Mapping[str, int], samples: int) -> None:
        """Log, once, that a batch is padded beyond a budget: the first batches are looked at."""
        if not self._looks or samples < 2:
            return
        self._looks -= 1
        for area, filled in padded_areas(batch, samples):
            for name, most in self._sums.items():
                # What the rows hold is this resource, but for what begins and ends a text.
                near = abs(filled - costs[name]) <= MARKS * samples
                if costs[name] <= most < area and near:
                    self._looks = 0
                    logger.warning(
                        "a batch of %d samples has %s %s, and is padded to %s, over the budget of "
                        "%s, which counts them without padding: give Balance(work=\"padded\"), "
                        "whose budgets count what batches hold",
                        samples, f"{costs[name]:,}", name, f"{area:,}", f"{most:,}",
                    )  # fmt: skip
                    return

    def end_epoch(self) -> None:
        """Log, once, how many microbatches of an epoch were over budget, and count from 0 again."""
        if self._over and not self._has_told:
            self._has_told = True
            logger.warning(
                "%d of this process' %d microbatches of the epoch were over budget",
                self._over, self._microbatches,
            )  # fmt: skip
        self._microbatches = self._over = 0


def padded_areas(batch: Any, samples: int) -> Iterator[tuple[int, int]]:
    """Yield the places (samples x longest) in a batch's padded tensors, and those that are filled.

    Padded are tensors (samples, L) or (samples, L, d) most of whose rows end, or begin, in one
    value.

    >>> (6, 4) in padded_areas({"ids": torch.tensor([[5, 6, 7], [8, 0, 0]])}, 2)
    True
    """
    for rows in _find_tensors(batch, DEPTH):
        if rows.is_nested or rows.ndim not in (2, 3):
            continue
        if len(rows) != samples or not rows.numel():
            continue
        places = rows.reshape(samples, rows.shape[1], -1)
        for ordered, first in ((places.flip(1), places[:, -1, 0]), (places, places[:, 0, 0])):
            for fill, _ in Counter(first.tolist()).most_common(FILLS):
                is_filled = (ordered != fill).any(2)
                before = is_filled.int().argmax(1)
                filled = int(((is_filled.shape[1] - before) * is_filled.any(1)).sum())
                if 0 < filled < is_filled.numel():
                    yield is_filled.numel(), filled


def _find_tensors(batch: Any, depth: int) -> Iterator[torch.Tensor]:
    """Yield the tensors in a batch: a tensor, or what has some as items or attributes."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth:
        fields = batch if isinstance(batch, Mapping) else getattr(batch, "__dict__", {})
        for part in batch if isinstance(batch, list | tuple) else fields.values():
            yield from _find_tensors(part, depth - 1)


def make_info(
    batch: MicrobatchFacts, epoch: int, ranks: int, resources: tuple[str, ...],
    over_budget: OverBudget, after: object, sources: Sequence[str] = (), shift_labels: bool = True,
) -> StepInfo:  # fmt: skip
    """Return the StepInfo of a microbatch; one without samples costs 0 of every resource.

    sources: the names of a mixture's, whose keys say of which source a sample is.
    """
    keys, nothing = batch.keys, (0,) * len(resources)
    by_source = Counter(map(find_source, keys)) if sources else Counter[str]()
    costs = dict(zip(resources, batch.costs or nothing, strict=True))
    padding = dict(zip(resources, batch.padding or nothing, strict=True))
    return StepInfo(
        epoch=epoch, step=batch.step, microbatch=batch.microbatch, microbatches=batch.microbatches,
        rank=batch.rank, ranks=ranks, **structs.asdict(batch.weights), keys=keys,
        holes=tuple([hole.key for hole in batch.holes]),
        images=costs.get("tiles", costs.get("patches", 1)) > 0 if keys else False, costs=costs,
        padding=padding, over_budget=over_budget.exceeded(costs), after=after,
        sources={name: by_source[name] for name in sources}, shift_labels=shift_labels,
    )  # fmt: skip
