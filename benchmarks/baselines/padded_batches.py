"""Other plans for padded batches, to compare with in `make bench NAME=padded`.

A plan is a list of rows, each the microbatches that run side by side; a microbatch is a list of
sample numbers. A microbatch costs count x its largest size.
"""

import importlib.metadata
import itertools
from collections.abc import Callable
from functools import cache

import numpy as np

from counterpoise.balancer.planning.kernels.arrays import Int64

from .published_samplers import transformers_rebalance

Rows = list[list[list[int]]]
_STEPS = 40


def in_order(samples: int, ranks: int, rows: int) -> Rows:
    """Cut the samples as they come, as many for every microbatch.

    >>> in_order(4, ranks=2, rows=1)
    [[[0, 1], [2, 3]]]
    """
    groups = [part.tolist() for part in np.array_split(np.arange(samples), ranks * rows)]
    return in_rows(groups, ranks)


def in_rows(groups: list[list[int]], ranks: int) -> Rows:
    """Put every `ranks` groups in turn side by side."""
    return [groups[k : k + ranks] for k in range(0, len(groups), ranks)]


def like_sizes(sizes: Int64, ranks: int, rows: int) -> Rows:
    """Cut the samples sorted by size, as many for every microbatch: the prototype's equal counts.

    >>> like_sizes(np.array([1, 9, 2, 8]), ranks=2, rows=1)
    [[[1, 3], [2, 0]]]
    """
    order = np.argsort(-sizes, kind="stable")
    groups = [part.tolist() for part in np.array_split(order, ranks * rows)]
    return in_rows(groups, ranks)


def free_counts(sizes: Int64, ranks: int, rows: int) -> Rows:
    """Make the largest microbatch as small as can be: the prototype, and OrchMLLM's rule."""
    order = np.argsort(-sizes, kind="stable")
    groups = [order[a:b].tolist() for a, b in _groups(sizes[order].tolist(), ranks * rows)]
    groups += [[] for _ in range(ranks * rows - len(groups))]
    work = [len(group) * int(sizes[group[0]]) if group else 0 for group in groups]
    return in_rows([groups[k] for k in np.argsort(-np.array(work), kind="stable")], ranks)


def slot_by_slot(sizes: Int64, ranks: int, rows: int, points: int = 48) -> Rows:
    """Choose on a grid where each row's samples end, by dynamic program: the prototype's best."""
    from counterpoise.balancer.planning.kernels.loops import least_top

    order = np.argsort(-sizes, kind="stable")
    sorted_sizes = np.maximum(sizes[order], 1)
    down = sorted_sizes.tolist()
    no_budget = np.full(len(down), len(down))

    @cache
    def top(begin: int, end: int) -> int:
        return int(least_top(sorted_sizes[begin:end], no_budget[begin:end], ranks))

    ends = sorted({*range(ranks, len(down), max(1, len(down) // points)), len(down)})
    best: dict[int, tuple[int, tuple[int, ...]]] = {end: (top(0, end), (0, end)) for end in ends}
    for _ in range(rows - 1):
        best = {
            end: min(
                (value + top(begin, end), (*cuts, end))
                for begin, (value, cuts) in best.items()
                if begin <= end
            )
            for end in ends
        }
    cuts = best[len(down)][1]
    found: Rows = []
    for begin, end in itertools.pairwise(cuts):
        groups = _groups(down[begin:end], ranks) if begin < end else []
        row = [order[begin + a : begin + b].tolist() for a, b in groups]
        found.append(row + [[] for _ in range(ranks - len(row))])
    return found


def installed_rebalance() -> tuple[str, Callable[[Int64, int, int, float], Rows]]:
    """Return transformers' BatchRebalanceSampler and its version; ours restated without it."""
    try:
        from transformers.trainer_pt_utils import BatchRebalanceSampler
    except ImportError:
        return "restated", _restated

    def plan(lengths: Int64, ranks: int, rows: int, per_square: float) -> Rows:
        values = lengths.tolist()
        sampler = BatchRebalanceSampler(values, len(values), ranks, rows)
        # Its cost is that which is measured: the sampler's own, or without the square.
        sampler.QUADRATIC_COST_COEF = per_square
        of_ranks = sampler._assign(list(range(len(values))), values)
        return [[list(of_ranks[r][row]) for r in range(ranks)] for row in range(rows)]

    return f"transformers {importlib.metadata.version('transformers')}", plan


def _restated(lengths: Int64, ranks: int, rows: int, per_square: float) -> Rows:
    return in_rows(transformers_rebalance(lengths, ranks, rows, per_square), ranks)


def _cut(sizes: list[int], most: float, groups: int) -> list[tuple[int, int]] | None:
    """Return groups of at most `most`, of descending sizes; None: more than `groups`."""
    found, begin = list[tuple[int, int]](), 0
    while begin < len(sizes):
        count = max(1, int(most // max(1, sizes[begin])))
        found.append((begin, min(begin + count, len(sizes))))
        begin += count
        if len(found) > groups:
            return None
    return found


def _groups(sizes: list[int], groups: int) -> list[tuple[int, int]]:
    """Return the groups whose largest is the least, by binary search."""
    low, high = float(sizes[0]), float(max(1, sizes[0]) * len(sizes))
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _cut(sizes, middle, groups) is None else (low, middle)
    return _cut(sizes, high, groups) or []
