"""Budgets to recommend: OmniBal's rule, and a search that has memory as its constraint."""

from dataclasses import dataclass, replace

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ...inputs.cost_tables import CostTable
from .machine import Model, PipelineMachine, most_tiles, peak_bytes
from .strategies import Plan, lanes, lay

SEARCH_SAMPLES = 8192
RATIOS = (0.85, 1.0, 1.2, 1.5)
SIZES = 11
MOST_OVER = 0.001  # of the samples: those over budget must stay a rarity


@dataclass(frozen=True, slots=True)
class BudgetCandidate:
    """Budgets, the memory they may take, and the step that they make.

    time: modelled time of a sample, pipeline fill included, in tokens; over: the share of samples
    that are larger than a budget, alone in a microbatch.
    """

    budgets: tuple[int, ...]
    waiting: float
    time: float
    over: float
    peak_bytes: int | None
    fits: bool


def omnibal_budgets(table: CostTable) -> tuple[int, ...]:
    """Return the longest sample's tokens, and as many tiles as go with that many tokens on average.

    OmniBal (2024), §5.2: Q_t is the longest length, the ratio of tokens and images gives Q_v.

    >>> costs = np.array([[1, 300], [3, 900], [0, 600]])
    >>> omnibal_budgets(CostTable(("tiles", "tokens"), costs, np.zeros(3, np.int64)))
    (2, 900)
    """
    main = _main(table.resources)
    longest = int(table.costs[:, main].max(initial=1))
    return _in_proportion(table, max(1, longest))


def search(
    table: CostTable, plan: Plan, model: Model, machine: PipelineMachine
) -> tuple[BudgetCandidate, BudgetCandidate, tuple[BudgetCandidate, ...]]:
    """Return OmniBal's candidate, the best that fits in memory, and all that were tried.

    The best has the least modelled time of a sample among those that fit in memory and leave at
    most one sample in a thousand over budget; OmniBal's is among them.
    """
    some = every_kth(table, SEARCH_SAMPLES)
    paper = omnibal_budgets(table)
    tried = {paper: _try(some, plan, paper, model, machine)}
    main = _main(table.resources)
    for size in _sizes(table.costs[:, main]):
        for ratio in RATIOS if "tiles" in table.resources else (1.0,):
            budgets = list(_in_proportion(table, size))
            for column, name in enumerate(table.resources):
                if name == "tiles":
                    budgets[column] = max(1, round(budgets[column] * ratio))
            if tuple(budgets) not in tried:
                tried[tuple(budgets)] = _try(some, plan, tuple(budgets), model, machine)
    fitting = [one for one in tried.values() if one.fits] or list(tried.values())
    roomy = [one for one in fitting if one.over <= MOST_OVER]
    best = min(roomy or fitting, key=lambda one: (round(one.time, 3), sum(one.budgets)))
    if not roomy:
        best = min(fitting, key=lambda one: (one.over, one.time))
    return tried[paper], best, tuple(tried.values())


def every_kth(table: CostTable, most: int) -> CostTable:
    """Return every k-th row, so that at most so many are left: all sources in their shares."""
    step = -(-len(table.costs) // most)
    return CostTable(table.resources, table.costs[::step], table.sources[::step])


def frontier(
    table: CostTable, model: Model, machine: PipelineMachine, most: int
) -> list[tuple[int, int]]:
    """Return (tokens, most tiles that fit beside them) from no tokens up to `most`."""
    if not {"tiles", "tokens"} <= set(table.resources):
        return []
    points = [(tokens, most_tiles(model, machine, tokens)) for tokens in _steps(most)]
    return [point for point in points if point[1] >= 0]


def _sizes(lengths: Int64) -> list[int]:
    """Budgets of the main resource to try: from about two samples to twice the longest."""
    longest = max(1, int(lengths.max(initial=1)))
    least = min(longest, max(1, round(2 * float(lengths.mean()))))
    between = np.geomspace(least, 2 * longest, SIZES)
    return sorted({longest, *(round(float(size)) for size in between)})


def _steps(most: int) -> list[int]:
    return sorted({round(most * k / 12) for k in range(13)})


def _try(
    table: CostTable, plan: Plan, budgets: tuple[int, ...], model: Model, machine: PipelineMachine
) -> BudgetCandidate:
    given = replace(plan, budgets=budgets)
    found = lanes("balanced", table, given, lay("balanced", table, given))
    rows = len(found.encoder)
    steps = len(np.unique(found.step_of))
    time = found.time * (1 + (machine.stages - 1) * steps / max(1, rows))
    over = float((table.costs > np.array(budgets)).any(axis=1).mean())
    peak = None
    if {"tiles", "tokens"} <= set(table.resources):
        peak = peak_bytes(
            model,
            machine,
            budgets[table.resources.index("tiles")],
            budgets[table.resources.index("tokens")],
        )
    fits = peak is None or peak <= machine.memory_bytes
    return BudgetCandidate(budgets, found.waiting, time, over, peak, fits)


def _in_proportion(table: CostTable, most: int) -> tuple[int, ...]:
    """Budgets in the ratio of the resources' sums, the main one as given."""
    sums = table.costs.sum(axis=0)
    whole = max(1, int(sums[_main(table.resources)]))
    return tuple(max(1, round(int(total) * most / whole)) for total in sums)


def _main(resources: tuple[str, ...]) -> int:
    if "tokens" in resources:
        return resources.index("tokens")
    return next((k for k, name in enumerate(resources) if name != "tiles"), 0)
