"""Two published samplers, their rules restated so that benches can compare with them."""

from itertools import pairwise

import numpy as np

from counterpoise.balancer.planning.kernels.arrays import Int64

Groups = list[list[int]]


def megatron_dp_balanced(tokens: Int64, ranks: int, budget: int) -> Groups:
    """Group one global batch by Megatron-LM's rule: next-fit in order, by tokens only.

    Megatron-LM, megatron/core/datasets/data_schedule.py, DpBalancedScheduler (2026). To reach a
    multiple of `ranks`, last samples move out of the last groups, one each to a new group. Groups
    ranks*k .. ranks*k + ranks - 1 run side by side. Raises ValueError if there are too few samples.

    >>> megatron_dp_balanced(np.array([3, 3, 3, 3, 3]), ranks=2, budget=7)
    [[0, 1], [2], [4], [3]]
    """
    groups: Groups = []
    load = budget + 1
    for sample, size in enumerate(tokens.tolist()):
        if load + size > budget:
            groups.append([])
            load = 0
        groups[-1].append(sample)
        load += size
    source = len(groups) - 1
    while len(groups) % ranks:
        if source < 0:
            raise ValueError(f"{len(tokens)} samples are too few for {ranks} ranks; add samples")
        if len(groups[source]) > 1:
            groups.append([groups[source].pop()])
        else:
            source -= 1
    return groups


def transformers_rebalance(
    tokens: Int64, ranks: int, accumulate: int, per_square: float = 0.001
) -> Groups:
    """Group one global batch by transformers' rule: like lengths together, sizes chosen by cost.

    transformers 5.23, trainer_pt_utils.py, BatchRebalanceSampler (pull request 47340): sorted by
    length, cut into ranks x accumulate groups whose costs size x longest + per_square x size x
    longest**2 are as even as cutting allows, groups sorted by cost: the dearest `ranks` run first.

    >>> transformers_rebalance(np.array([8, 2, 2, 4]), ranks=1, accumulate=2, per_square=0.0)
    [[3, 1, 2], [0]]
    """
    order = np.argsort(-tokens, kind="stable")
    lengths = tokens[order].tolist()
    parts = min(ranks * accumulate, len(lengths))
    low, high = 0.0, _cost(len(lengths), lengths[0], per_square)
    # The least cost per group with which there are no more groups than wanted.
    for _ in range(60):
        middle = (low + high) / 2
        if len(_cuts(lengths, middle, per_square)) <= parts:
            high = middle
        else:
            low = middle
    edges = [*_cuts(lengths, high, per_square), len(lengths)]
    groups = [order[a:b].tolist() for a, b in pairwise(edges)]
    while len(groups) < parts:
        widest = max(range(len(groups)), key=lambda k: len(groups[k]))
        half = len(groups[widest]) // 2
        groups[widest : widest + 1] = [groups[widest][:half], groups[widest][half:]]
    groups += [[] for _ in range(ranks * accumulate - parts)]
    costs = [_cost(len(g), int(tokens[g].max(initial=0)) if g else 0, per_square) for g in groups]
    return [groups[k] for k in sorted(range(len(groups)), key=lambda k: (-costs[k], k))]


def _cost(size: int, longest: int, per_square: float) -> float:
    return size * longest + per_square * size * longest * longest


def _cuts(lengths: list[int], limit: float, per_square: float) -> list[int]:
    """Return where groups begin if each takes lengths, longest first, up to a cost of `limit`."""
    cuts: list[int] = []
    size, longest = 0, 0
    for position, length in enumerate(lengths):
        if not cuts or _cost(size + 1, longest, per_square) > limit:
            cuts.append(position)
            size, longest = 0, length
        size += 1
    return cuts
