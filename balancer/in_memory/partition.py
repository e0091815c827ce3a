"""A deal of items to ranks and microbatches as a function of their costs: `cp.partition`."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..near_names import check_name
from ..planning.kernels.arrays import Int64
from ..planning.problem.options import Counts, WorkName, is_positive
from ..planning.problem.values import Work
from .dealing import deal_padded, deal_to_microbatches, deal_to_ranks
from .problem import (
    Budgets,
    DealingProblem,
    Float64,
    Ids,
    KeepGroups,
    Numbers,
    Remainder,
    read_problem,
)


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Which rank takes which items in which microbatch; made by `partition`.

    Args:
        ranks: Each rank's items, by their index: those of its microbatches one after another.
        microbatches: Each rank's microbatches, each a list of indices, ascending; as many on every
            rank, some of them empty where items are too few.
        inverse: int64 (items,): where item i stands in the lists of `ranks` one after another, so
            that results of all ranks, put together and indexed by it, are in the items' order; -1
            for an item that was dropped.
        work: float64 (ranks, microbatches), in the unit of the items' work.
        imbalance: The largest rank's work (with speeds its time) over the mean; 1 is even.
        bound: The least that the largest rank's work, or time, can be.
        dropped, repeated: Indices of items that remainder dropped, or repeated.
        weights: In the order of `ranks`, 1.0, or 0.0 for an item that is there a second time.
    """

    ranks: list[list[int]]
    microbatches: list[list[list[int]]]
    inverse: Int64
    work: Float64
    imbalance: float
    bound: float
    dropped: tuple[int, ...]
    repeated: tuple[int, ...]
    weights: list[list[float]]


def partition(
    costs: Numbers | Mapping[str, Numbers], ranks: int, *, counts: Counts = "equal",
    remainder: Remainder = "keep", budgets: Budgets = None, min_microbatches: int = 1,
    multiple_of: int = 1, work: Work | WorkName | Mapping[str, int] = "packed",
    loads: Numbers | None = None, groups: Ids | None = None,
    keep_groups: KeepGroups = "together", keep_order: bool = False, speeds: Numbers | None = None,
) -> Partition:  # fmt: skip
    """Return a deal of items to ranks for even work, and to microbatches within budgets.

    A pure function: every process that calls it with the same arguments gets the same result, so
    that ranks need not tell each other; torch is not imported. Items go to ranks by longest
    processing time and exchanges, as in plans (docs/adr/0067-partition.md). Raises ValueError for
    wrong arguments, and, with the item's index, for what cannot be dealt.

    Args:
        costs: Lengths (items,), or a mapping of resources, {"tokens": [...], "tiles": [...]}.
        ranks: Data-parallel ranks.
        counts: "equal" gives ranks numbers of items that differ by one at most, "free" any.
        remainder: Of counts "equal", if ranks do not divide the items: "keep" all, "error",
            "repeat" the cheapest (they weigh 0), or "drop" the last.
        budgets: The most of a resource in a microbatch, 16384 or {"tokens": 16384}; default: none.
        min_microbatches, multiple_of: All ranks have as many microbatches: at least so many, and a
            multiple of the other; default 1.
        work: What ranks are to have alike, as `Balance(work=)`: "packed" sums, "padded" count x
            largest, {"tokens": ns, "attention_pairs": ns}, or a cp.Work.
        loads: The work of each item (items,), instead.
        groups: An id of each item, such as its prompt's.
        keep_groups: A group's items are on one rank ("together"), or on as many as can be, their
            numbers on ranks differing by one at most ("spread").
        keep_order: Whether a rank's microbatches are runs of its items in the order given.
        speeds: Of each rank (ranks,), for work in proportion; default: alike.

    >>> dealt = partition([900, 100, 500, 300, 400, 200], 2)
    >>> dealt.ranks, dealt.work.sum(axis=1).tolist()
    ([[0, 1, 5], [2, 3, 4]], [1200.0, 1200.0])
    """
    check_name("counts", counts, ("equal", "free"))
    check_name("remainder", remainder, ("keep", "error", "repeat", "drop"))
    check_name("keep_groups", keep_groups, ("together", "spread"))
    numbers = {"ranks": ranks, "min_microbatches": min_microbatches, "multiple_of": multiple_of}
    for name, number in numbers.items():
        if not is_positive(number):
            raise ValueError(f"{name} is {number!r:.80}, allowed is a positive integer")
    problem = read_problem(costs, ranks, budgets, counts, remainder, work, loads, groups, speeds)
    if keep_order and problem.config.padded:
        raise ValueError("keep_order cuts by sums: use work 'packed', or leave keep_order out")
    is_free = counts == "free" and groups is None and problem.speeds is None
    if problem.config.padded and is_free:
        cell_of, microbatches = deal_padded(problem, min_microbatches, multiple_of)
    else:
        rank_of = deal_to_ranks(problem, counts, keep_groups)
        cell_of, microbatches = deal_to_microbatches(
            problem, rank_of, min_microbatches, multiple_of, counts, keep_groups, keep_order
        )
    cells = ranks * microbatches
    amounts = problem.sum_work(cell_of, cells).reshape(ranks, microbatches)
    time = amounts.sum(axis=1) / (1.0 if problem.speeds is None else problem.speeds)
    mean = float(amounts.sum()) / ranks
    order = np.argsort(cell_of, kind="stable")
    indices, is_copy = problem.indices[order], problem.is_copy[order]
    inverse = np.full(problem.items, -1, dtype=np.int64)
    inverse[indices[~is_copy]] = np.flatnonzero(~is_copy)
    ends = np.cumsum(np.bincount(cell_of, minlength=cells))
    of_ranks = ends[microbatches - 1 :: microbatches]
    in_cells = _cut(indices, ends)
    return Partition(
        ranks=_cut(indices, of_ranks),
        microbatches=[in_cells[k : k + microbatches] for k in range(0, cells, microbatches)],
        inverse=inverse,
        work=amounts,
        imbalance=float(time.max()) / mean if mean else 1.0,
        bound=_bound(problem, counts, keep_groups),
        dropped=tuple(np.flatnonzero(inverse < 0).tolist()),
        repeated=tuple(problem.indices[problem.is_copy].tolist()),
        weights=_cut(1.0 - is_copy, of_ranks),
    )


def _cut(flat: npt.NDArray[Any], ends: Int64) -> list[list[Any]]:
    """Return the parts of flat (n,) that end there, as lists."""
    values, edges = flat.tolist(), [0, *ends.tolist()]
    return [values[begin:end] for begin, end in pairwise(edges)]


def _bound(problem: DealingProblem, counts: Counts, keep_groups: KeepGroups) -> float:
    """Return the least work, or time, of the rank that has most.

    It is the mean at least, and the largest item's or group's, beside which a rank of equal counts
    has others, the smallest at best.
    """
    ranks, work = problem.config.ranks, problem.work
    if not len(work):
        return 0.0
    group_of = problem.group_of if keep_groups == "together" else None
    group_of = np.arange(len(work)) if group_of is None else group_of
    by_group = np.bincount(group_of, work)
    largest = by_group.argmax()
    others = len(work) // ranks - np.count_nonzero(group_of == largest)
    beside = np.sort(work)[: max(0, others)].sum() if counts == "equal" else 0.0
    fastest = 1.0 if problem.speeds is None else problem.speeds.max()
    return float(max(work.sum() / ranks, (by_group[largest] + beside) / fastest))
