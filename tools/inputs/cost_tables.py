"""Costs of samples as a table, and plans of whole epochs of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...balancer.planning.kernels.arrays import Int64
from ...balancer.planning.planner import make_planner
from ...balancer.planning.problem.config import GlobalBatch, PlanConfig, Window
from ...balancer.planning.problem.shuffle import permutation
from .programs import is_count


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs (n, resources) of named resources, and the source of each sample (n,)."""

    resources: tuple[str, ...]
    costs: Int64
    sources: Int64

    def column(self, name: str) -> Int64:
        """Return one resource's costs; zeros if it is not there."""
        if name not in self.resources:
            return np.zeros(len(self.costs), dtype=np.int64)
        return self.costs[:, self.resources.index(name)]


def parse_budgets(texts: tuple[str, ...]) -> dict[str, int]:
    """Return {resource: budget} from texts like tiles=9; raises ValueError if one is malformed.

    >>> parse_budgets(("tiles=9", "tokens=4096"))
    {'tiles': 9, 'tokens': 4096}
    """
    budgets = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not is_count(value):
            raise ValueError(
                f"--budget got {text!r:.80}; write RESOURCE=AMOUNT, such as tokens=4096"
            )
        budgets[name] = int(value)
    return budgets


def encoder_and_llm(resources: tuple[str, ...], loads: Int64) -> tuple[Int64, Int64]:
    """Return encoder units (tiles) and language-model units (tokens, or the first other one).

    >>> [part.tolist() for part in encoder_and_llm(("tiles", "tokens"), np.array([[2, 9]]))]
    [[2], [9]]
    """
    encoder = np.zeros(loads.shape[:-1], np.int64)
    if "tiles" in resources:
        encoder = loads[..., resources.index("tiles")]
    others = [k for k, name in enumerate(resources) if name != "tiles"]
    if "tokens" in resources:
        return encoder, loads[..., resources.index("tokens")]
    return encoder, loads[..., others[0]] if others else np.zeros_like(encoder)


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """Groups of sample numbers, and rows (m, ranks) of group numbers that run side by side.

    step_of_row (m,): the optimizer step of each row. whole_rows: rows before the epoch's padded
    last step.
    """

    groups: list[list[int]]
    rows: Int64
    step_of_row: Int64
    whole_rows: int


def from_planner(table: CostTable, config: PlanConfig) -> EpochPlan:
    """Plan an epoch window by window with the product's planner."""
    order = permutation(len(table.costs), config.seed, 0)
    windows = plan_windows(config, table.costs[order])
    return from_batches([batch for window in windows for batch in window], order, config)


def plan_windows(
    config: PlanConfig, costs: Int64, epoch: int = 0
) -> Iterator[Sequence[GlobalBatch]]:
    """Yield the global batches of each window of an epoch."""
    planner = make_planner(config)
    start = batches = 0
    while start < len(costs):
        window = costs[start : start + planner.window_samples]
        last = start + len(window) >= len(costs)
        planned = planner.plan(Window(epoch, batches, start, window, last))
        yield planned.batches
        batches += len(planned.batches)
        start += planned.consumed


def from_batches(batches: list[GlobalBatch], order: Int64, config: PlanConfig) -> EpochPlan:
    """Return global batches as an EpochPlan; `order` maps ordinals to sample numbers."""
    numbers = order.tolist()
    groups = [
        [numbers[o] for o in microbatch.ordinals]
        for batch in batches
        for rank in batch.ranks
        for microbatch in rank
    ]
    rows, steps, made = list[Int64](), list[int](), 0
    for batch in batches:
        deep = len(batch.ranks[0])
        block = np.arange(made, made + config.ranks * deep, dtype=np.int64)
        rows.append(block.reshape(config.ranks, deep).T)
        steps += [batch.step] * deep
        made += config.ranks * deep
    whole = len(steps) - len(batches[-1].ranks[0])
    return EpochPlan(groups, np.concatenate(rows), np.array(steps), whole)
