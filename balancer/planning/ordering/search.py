"""Searches an order of a rank's microbatches for its pipeline, never worse than the one given.

The oracle is an argument: any function from an order, int64 (microbatches,), to nanoseconds. With
`evaluator.PipelineEvaluator` as oracle the search runs compiled.
"""

from collections.abc import Callable

import numpy as np

from ...near_names import check_name
from ..kernels.arrays import Int64
from ..problem.options import ORDERINGS
from ..problem.shuffle import permutation
from .disttrain import disttrain
from .evaluator import PipelineEvaluator

Oracle = Callable[[Int64], int]

EVALUATIONS = 40_000
RANDOM_STARTS = 4


def two_opt(order: Int64, oracle: Oracle, evaluations: int = EVALUATIONS) -> Int64:
    """Return an order that no swap of two microbatches improves, or the best within evaluations.

    Local search after Croes (1958); never worse than `order`.

    >>> two_opt(np.array([2, 0, 1]), lambda o: int(abs(o - np.arange(3)).sum())).tolist()
    [0, 1, 2]
    """
    if isinstance(oracle, PipelineEvaluator):
        return oracle.two_opt(order, evaluations)
    current = np.array(order, dtype=np.int64)
    best, done, better = oracle(current), 1, True
    while better and done < evaluations:
        better = False
        for a in range(len(current) - 1):
            for b in range(a + 1, len(current)):
                if done >= evaluations:
                    return current
                current[[a, b]] = current[[b, a]]
                found = oracle(current)
                done += 1
                if found < best:
                    best, better = found, True
                else:
                    current[[a, b]] = current[[b, a]]
    return current


def multi_start(
    order: Int64, oracle: Oracle, starts: list[Int64] | None = None, evaluations: int = EVALUATIONS
) -> Int64:
    """Return the best of 2-opt from `order`, from its reverse, from `starts` and a few shuffles.

    >>> multi_start(np.array([1, 0]), lambda o: int(o[0])).tolist()
    [0, 1]
    """
    shuffles = [permutation(len(order), seed, 0) for seed in range(RANDOM_STARTS)]
    tried = [order, order[::-1], *(starts or []), *shuffles]
    found = [two_opt(start, oracle, evaluations) for start in tried]
    return min(found, key=oracle)


def orders_by_size(sizes: Int64) -> list[Int64]:
    """Return three orders by size: ascending, descending, and smallest at both ends (verl's).

    >>> [order.tolist() for order in orders_by_size(np.array([3, 1, 2]))]
    [[1, 2, 0], [0, 2, 1], [1, 0, 2]]
    """
    up = np.argsort(sizes, kind="stable")
    both_ends = np.concatenate([up[0::2], up[1::2][::-1]])
    return [up, up[::-1].copy(), both_ends]


def find_order(name: str, pipeline: PipelineEvaluator) -> Int64:
    """Return the order that the ordering of that name finds for a pipeline's microbatches.

    The order given is 0, 1, 2, ... DistTrain's may be worse, so it is returned only if better.
    Raises ValueError for an unknown name.
    """
    check_name("ordering", name, ORDERINGS)
    given = np.arange(pipeline.costs.shape[1], dtype=np.int64)
    if name == "given" or len(given) < 2:
        return given
    printed = disttrain(pipeline)
    start = min(given, printed, key=pipeline)
    if name == "disttrain":
        return start
    if name == "two_opt":
        return two_opt(start, pipeline)
    sizes = pipeline.costs.sum(axis=0)
    return multi_start(given, pipeline, [printed, *orders_by_size(sizes)])
