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
# Bound or value, depth, order of choices, whether it is a value, plan: among equals the deeper ones
# come first, so that whole plans are found early.
_Entry = tuple[int, int, int, bool, Beginning]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A plan, and its value: the less the better."""

    plan: Beginning
    value: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The best plans, best first; so many plans were `evaluated`.

    `bound`: no plan is better than this; the first one's value, where the search went to its end.
    """

    best: tuple[Ranked, ...]
    evaluated: int
    bound: int


class _Frontier:
    """All beginnings and whole plans that were seen and not yet taken, as a heap."""

    def __init__(self, choices: Sequence[Choice], evaluate: Bound, bound: Bound) -> None:
        self.choices, self.evaluate, self.bound = choices, evaluate, bound
        self.heap: list[_Entry] = [(0, 0, 0, False, ())]
        self.number = self.continued = self.evaluated = 0

    def proceed(self, least: int, at: int, chosen: Beginning, dive: int | None) -> None:
        """Evaluate a whole plan, or add what a beginning is continued to."""
        if len(chosen) == len(self.choices):
            self._price(at, chosen)
            return
        self.continued += 1
        following = self._longer(chosen, least)
        for entry in following:
            heapq.heappush(self.heap, entry)
        if len(chosen) == dive:
            while following and len(following[0][4]) < len(self.choices):
                nearest = min(following)
                following = self._longer(nearest[4], nearest[0])
            if following:
                self._price(at, min(following)[4])

    def _longer(self, chosen: Beginning, least: int) -> list[_Entry]:
        entries = []
        for choice in self.choices[len(chosen)](chosen):
            self.number += 1
            following = (*chosen, choice)
            if (bounded := self.bound(following)) is not None:
                entry = max(least, bounded), -len(following), self.number, False, following
                entries.append(entry)
        return entries

    def _price(self, at: int, chosen: Beginning) -> None:
        self.evaluated += 1
        exact = self.evaluate(chosen)
        if exact is not None:
            heapq.heappush(self.heap, (exact, -len(chosen) - 1, at, True, chosen))


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
) -> Outcome:
    """Return the `keep` best plans by `evaluate`.

    `bound` must not be above the value of any plan that begins so. `apart`: of the plans that begin
    with the same `apart` values only the best is kept. `most`: beginnings to continue; after that
    the best plans seen are returned. For them to be good, each beginning of `dive` values is
    followed to a whole plan, by the least bounds, when it is continued. `look` is told how far the
    search is.

    >>> words = [lambda _: "ab", lambda chosen: "xyz" if chosen == ("a",) else "x"]
    >>> values = {"ax": 5, "ay": 3, "az": 4, "bx": 4}
    >>> least = lambda chosen: min(v for k, v in values.items() if k.startswith("".join(chosen)))
    >>> outcome = search(words, lambda plan: values["".join(plan)], least, keep=2, apart=1)
    >>> [plan.plan for plan in outcome.best], outcome.evaluated
    ([('a', 'y'), ('b', 'x')], 2)
    """
    apart = len(choices) if apart is None else apart
    seen, least = _Frontier(choices, evaluate, bound), 0
    best: list[Ranked] = []
    kept_beginnings: set[Beginning] = set()
    while seen.heap and len(best) < keep:
        is_over = most is not None and seen.continued >= most
        value, _, at, is_value, chosen = heapq.heappop(seen.heap)
        least = least if best or is_over else value
        if chosen[:apart] in kept_beginnings:
            continue
        # A plan that comes off the heap is the best left: no bound is below its value.
        if is_value:
            best.append(Ranked(chosen, value))
            kept_beginnings.add(chosen[:apart])
        elif not is_over:
            seen.proceed(value, at, chosen, dive)
            look(seen.continued, seen.evaluated)
    return Outcome(tuple(best), seen.evaluated, least)
