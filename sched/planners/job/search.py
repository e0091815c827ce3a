"""Branch and bound over choices that are made one after another, exact for its bounds.

A plan is a tuple, a value for each choice, and what a choice allows may depend on those before it.
The best first: of all beginnings of plans the one with the least bound is continued, whole plans
are evaluated when their bound is the least, and a plan whose own value is the least of all is the
optimum (Land and Doig, 1960; Hart, Nilsson and Raphael, 1968). Values and bounds are whole numbers,
and equal ones come in the order of the choices' values, so the answer is the same everywhere.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Beginning = tuple[Any, ...]
# (values chosen so far) -> values of the next choice
Choice = Callable[[Beginning], Iterable[Any]]
# None: no plan that begins so is possible, or this plan is not.
Bound = Callable[[Beginning], int | None]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A plan, and its value: the less the better."""

    plan: Beginning
    value: int


@dataclass(frozen=True, slots=True)
class Found:
    """The best plans, best first; `continued` beginnings were looked at, and plans `evaluated`.

    `bound`: no plan is better than this; the first one's value, where the search went to its end.
    """

    best: tuple[Ranked, ...]
    continued: int
    evaluated: int
    bound: int


def search(
    choices: Sequence[Choice],
    evaluate: Bound,
    bound: Bound,
    *,
    keep: int = 1,
    apart: int | None = None,
    most: int | None = None,
    dive: int | None = None,
    look: Callable[[int, int], object] = lambda _continued, _evaluated: None,
) -> Found:
    """Return the `keep` best plans by `evaluate`.

    `bound` must not be above the value of any plan that begins so. `apart`: of the plans that begin
    with the same `apart` values only the best is kept. `most`: beginnings to continue; after that
    the best plans seen are returned. For them to be good, each beginning of `dive` values is
    followed to a whole plan, by the least bounds, when it is continued. `look` is told how far the
    search is.

    >>> words = [lambda _: "ab", lambda chosen: "xyz" if chosen == ("a",) else "x"]
    >>> values = {"ax": 5, "ay": 3, "az": 4, "bx": 4}
    >>> least = lambda chosen: min(v for k, v in values.items() if k.startswith("".join(chosen)))
    >>> found = search(words, lambda plan: values["".join(plan)], least, keep=2, apart=1)
    >>> [one.plan for one in found.best], found.evaluated
    ([('a', 'y'), ('b', 'x')], 2)
    """
    apart = len(choices) if apart is None else apart
    # (bound or value, depth, order of choices, whether it is a value, plan): among equals the
    # deeper ones first, so that whole plans are found early.
    heap: list[tuple[int, int, int, bool, Beginning]] = [(0, 0, 0, False, ())]
    best: list[Ranked] = []
    kept: set[Beginning] = set()
    number = continued = evaluated = 0

    def longer(chosen: Beginning, least: int) -> list[tuple[int, int, int, bool, Beginning]]:
        nonlocal number
        found = []
        for one in choices[len(chosen)](chosen):
            number += 1
            following = (*chosen, one)
            bounded = bound(following)
            if bounded is not None:
                found.append((max(least, bounded), -len(following), number, False, following))
        return found

    def value_of(at: int, chosen: Beginning) -> None:
        nonlocal evaluated
        evaluated += 1
        exact = evaluate(chosen)
        if exact is not None:
            heapq.heappush(heap, (exact, -len(chosen) - 1, at, True, chosen))

    least = 0
    while heap and len(best) < keep and (most is None or continued < most):
        value, _, at, known, chosen = heapq.heappop(heap)
        least = least if best else value
        if len(chosen) >= apart and chosen[:apart] in kept:
            continue
        if known:
            best.append(Ranked(chosen, value))
            kept.add(chosen[:apart])
        elif len(chosen) == len(choices):
            value_of(at, chosen)
        else:
            continued += 1
            following = longer(chosen, value)
            for entry in following:
                heapq.heappush(heap, entry)
            if len(chosen) == dive:
                while following and len(following[0][4]) < len(choices):
                    nearest = min(following)
                    following = longer(nearest[4], nearest[0])
                if following:
                    value_of(at, min(following)[4])
        look(continued, evaluated)
    for value, _, _, known, chosen in sorted(heap):
        if known and len(best) < keep and chosen[:apart] not in kept:
            best.append(Ranked(chosen, value))
            kept.add(chosen[:apart])
    return Found(tuple(best), continued, evaluated, least)
