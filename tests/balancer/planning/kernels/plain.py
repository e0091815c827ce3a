"""Groups as plain lists, and the exchanges of planning kernels by the definition, not by the loop.

What an exchange is worth is computed from all members of both groups before and after it; among
equals the first in the order of `choices` is taken.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from counterpoise.balancer.planning.kernels.arrays import Slots

Groups = list[list[int]]
# Places in the groups that give and take; None: nothing goes that way.
Exchange = tuple[int | None, int | None]
MEAN = 2**20


def sums(costs: np.ndarray, members: Sequence[int]) -> list[int]:
    """The load of some items, in each resource."""
    return [sum(int(costs[item, r]) for item in members) for r in range(costs.shape[1])]


def groups_of(slots: Slots) -> Groups:
    """The groups in slots, their members in the order of their places."""
    return [
        slots.items[begin : begin + count].tolist()
        for begin, count in zip(slots.start[:-1], slots.counts, strict=True)
    ]


def after(groups: Groups, high: int, low: int, exchange: Exchange) -> tuple[list[int], list[int]]:
    """Both groups' members after an exchange, in their places."""
    give, take = exchange
    ours, theirs = groups[high].copy(), groups[low].copy()
    if give is not None and take is not None:
        ours[give], theirs[take] = theirs[take], ours[give]
    elif give is not None:
        hand_over(ours, give, theirs)
    elif take is not None:
        hand_over(theirs, take, ours)
    return ours, theirs


def hand_over(giving: list[int], place: int, taking: list[int]) -> None:
    """Move an item behind the others; the last one of its group takes its place."""
    taking.append(giving[place])
    giving[place] = giving[-1]
    giving.pop()


def choices(
    groups: Groups, high: int, low: int, turn: int, moves: bool, candidates: int
) -> Iterator[Exchange]:
    """The exchanges of two groups that are tried, in order; a group's only item may not leave."""

    def places(group: list[int], other: list[int]) -> list[int | None]:
        first = turn % max(1, len(group) - candidates + 1)
        tried = range(first, first + min(len(group), candidates))
        return [*([None] if moves and len(other) > 1 else []), *tried]

    for give in places(groups[high], groups[low]):
        for take in places(groups[low], groups[high]):
            if (give, take) != (None, None):
                yield give, take


def squares(loads: Sequence[int]) -> int:
    """The sum of squared loads."""
    return sum(load**2 for load in loads)


def excess(loads: Sequence[int]) -> int:
    """The sum of squares of what is above the mean."""
    return sum(max(load - MEAN, 0) ** 2 for load in loads)


def best_exchange(
    groups: Groups, costs: np.ndarray, budgets: Sequence[int], high: int, low: int, turn: int,
    moves: bool, candidates: int, measure: Callable[[Sequence[int]], int],
) -> Exchange:  # fmt: skip
    """The exchange within budgets after which the measure of both groups is least."""

    def worth(*members: list[int]) -> int:
        return sum(measure(sums(costs, each)) for each in members)

    best, found = worth(groups[high], groups[low]), (None, None)
    for exchange in choices(groups, high, low, turn, moves, candidates):
        ours, theirs = after(groups, high, low, exchange)
        within = all(
            load <= most
            for each in (ours, theirs)
            for load, most in zip(sums(costs, each), budgets, strict=True)
        )
        if within and worth(ours, theirs) < best:
            best, found = worth(ours, theirs), exchange  # type: ignore[assignment]
    return found
