"""Finds budgets to recommend: OmniBal's rule, and a search among those that fit in memory."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ....balancer.planning.kernels.arrays import Int64
from ....balancer.planning.problem.metrics import TILE_TOKENS
from ...inputs.cost_tables import CostTable
from .pipelines import PipelineMachine, peak_bytes
from .strategies import Plan, micro_steps

Json = dict[str, Any]

SEARCH_SAMPLES = 8192
RATIOS = (0.85, 1.0, 1.2, 1.5)
SIZES = 11
# At most one sample in a thousand may be over budget, since each gets a microbatch of its own.
MOST_OVER = 0.001


@dataclass(frozen=True, slots=True)
class BudgetCandidate:
    """Budgets, the memory that they need, and the step that they lead to.

    time: modelled time of a sample in tokens, filling the pipeline included; over: the share of
    samples that exceed a budget, each alone in a microbatch.
    """

    budgets: tuple[int, ...]
    waiting: float
    time: float
    over: float
    peak_bytes: int | None
    fits: bool


def omnibal_budgets(table: CostTable) -> tuple[int, ...]:
    """Return the longest sample's tokens, and as many tiles as go with that many tokens on average.

    OmniBal (2025), §5.2: Q_t is the longest length, the ratio of tokens and images gives Q_v.

    >>> costs = np.array([[1, 300], [3, 900], [0, 600]])
    >>> omnibal_budgets(CostTable(("tiles", "tokens"), costs, np.zeros(3, np.int64)))
    (2, 900)
    """
    main = _main(table.resources)
    longest = int(table.costs[:, main].max(initial=1))
    return _in_proportion(table, max(1, longest))


@dataclass(frozen=True, slots=True)
class BudgetSearch:
    """OmniBal's budgets, and the best that fit in memory."""

    omnibal: BudgetCandidate
    best: BudgetCandidate


def search(table: CostTable, plan: Plan, machine: PipelineMachine) -> BudgetSearch:
    """Try budgets of several sizes, each with several ratios of tiles to tokens.

    The best have the least modelled time of a sample among those that fit in memory and leave at
    most one sample in a thousand over budget; OmniBal's are among them.
    """
    some = every_kth(table, SEARCH_SAMPLES)
    paper = omnibal_budgets(table)
    tried = {paper: _try(some, plan, paper, machine)}
    main = _main(table.resources)
    for size in _sizes(table.costs[:, main]):
        for ratio in RATIOS if "tiles" in table.resources else (1.0,):
            budgets = list(_in_proportion(table, size))
            for column, name in enumerate(table.resources):
                if name == "tiles":
                    budgets[column] = max(1, round(budgets[column] * ratio))
            if tuple(budgets) not in tried:
                tried[tuple(budgets)] = _try(some, plan, tuple(budgets), machine)
    # If nothing fits in memory, or all budgets leave many samples over, the least bad is reported.
    fitting = [one for one in tried.values() if one.fits] or list(tried.values())
    roomy = [one for one in fitting if one.over <= MOST_OVER]
    best = min(roomy or fitting, key=lambda one: (round(one.time, 3), sum(one.budgets)))
    if not roomy:
        best = min(fitting, key=lambda one: (one.over, one.time))
    return BudgetSearch(tried[paper], best)


def every_kth(table: CostTable, most: int) -> CostTable:
    """Return every k-th row, at most `most` in all, so every source keeps its share."""
    step = -(-len(table.costs) // most)
    return CostTable(table.resources, table.costs[::step], table.sources[::step])


def budget_figures(found: BudgetSearch, table: CostTable, machine: PipelineMachine) -> Json:
    """Return both candidates, and the model behind them."""
    heaviest_bytes = None
    if _has_both(table):
        tiles, tokens = table.column("tiles"), table.column("tokens")
        worst = np.lexsort((tokens, tiles * 4 * TILE_TOKENS + tokens))[-1]
        heaviest_bytes = peak_bytes(machine, int(tiles[worst]), int(tokens[worst]))
    return {
        "resources": list(table.resources),
        "omnibal": asdict(found.omnibal),
        "searched": asdict(found.best),
        "heaviest_sample_bytes": heaviest_bytes,
        "model": machine.model.name,
        "machine": {
            "stages": machine.layout.pp,
            "tensor_parallel": machine.layout.tp,
            "data_parallel": machine.layout.dp,
            "memory_bytes": machine.memory_bytes,
            "device": machine.device.origin,
        },
    }


def _sizes(lengths: Int64) -> list[int]:
    """Return budgets of the main resource to try: from two mean samples to twice the longest."""
    longest = max(1, int(lengths.max(initial=1)))
    least = min(longest, max(1, round(2 * float(lengths.mean()))))
    between = np.geomspace(least, 2 * longest, SIZES)
    return sorted({longest, *(round(float(size)) for size in between)})


def _try(
    table: CostTable, plan: Plan, budgets: tuple[int, ...], machine: PipelineMachine
) -> BudgetCandidate:
    given = replace(plan, budgets=budgets)
    found = micro_steps("balanced", table, given)
    rows = len(found.encoder)
    time = found.time * (1 + (machine.layout.pp - 1) * found.step_count / max(1, rows))
    over = float((table.costs > np.array(budgets)).any(axis=1).mean())
    peak = None
    if _has_both(table):
        both = [table.resources.index(name) for name in ("tiles", "tokens")]
        # Samples over a budget are alone in a microbatch, and need room too.
        alone = table.costs[(table.costs > np.array(budgets)).any(axis=1)][:, both]
        loads = [[budgets[column] for column in both]]
        if len(alone):
            weights = ((1, 0), (0, 1), (4 * TILE_TOKENS, 1))
            loads += [alone[int((alone @ each).argmax())].tolist() for each in weights]
        peak = max(peak_bytes(machine, tiles, tokens) for tiles, tokens in loads)
    fits = peak is None or peak <= machine.memory_bytes
    return BudgetCandidate(budgets, found.waiting, time, over, peak, fits)


def _in_proportion(table: CostTable, most: int) -> tuple[int, ...]:
    """Return budgets in the ratio of the resources' sums, `most` for the main one."""
    sums = table.costs.sum(axis=0)
    whole = max(1, int(sums[_main(table.resources)]))
    return tuple(max(1, round(int(total) * most / whole)) for total in sums)


def _main(resources: tuple[str, ...]) -> int:
    if "tokens" in resources:
        return resources.index("tokens")
    return next((k for k, name in enumerate(resources) if name != "tiles"), 0)


def _has_both(table: CostTable) -> bool:
    """Return whether the memory of samples can be modelled."""
    return {"tiles", "tokens"} <= set(table.resources)
