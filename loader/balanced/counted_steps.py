"""Fetches whole steps where label tokens are known only when all of a step's batches are collated.

A StepInfo is complete before its step's first microbatch is handed out: so all of the step are
fetched and collated, and the ranks' counts added up by the balancer, which every rank asks. No
collective is called. What comes out are the same microbatches at the same positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from msgspec import structs

from ..resume.balanced_position import ResumePosition
from .fetching import Delivered, Fetched, PassedOver

Fetch = Callable[[ResumePosition], Fetched | PassedOver | None]
Place = tuple[int, int, int]


class CountedSteps:
    """Fetches at positions, as Fetcher does; infos have the label tokens of rank and step.

    What was fetched of a step is kept until another step is asked for: after an exception it goes
    on where it was.
    """

    def __init__(self, fetch: Fetch, add_up: Callable[[int, Mapping[int, int]], int]) -> None:
        """`fetch` returns the microbatch at a position.

        `add_up` takes a step and the label tokens of each rank here, and returns those of all.
        """
        self._fetch = fetch
        self._add_up = add_up
        # The position at which the step that is kept begins.
        self._first: ResumePosition | None = None
        self._parts: list[tuple[Place, Fetched]] = []
        self._counted: dict[Place, Fetched] = {}

    def fetch(self, at: ResumePosition) -> Fetched | PassedOver | None:
        """Return the microbatch at a position, None at the end of the run."""
        if (found := self._counted.get(_place(at))) is not None:
            return found
        if self._first is None or at.place.step != self._first.place.step:
            self._first, self._parts, self._counted = beginning(at), [], {}
        here = self._parts[-1][1].after if self._parts else self._first
        while not self._parts or here.place.step == at.place.step:
            fetched = self._fetch(here)
            if fetched is None:
                return None
            if isinstance(fetched, Fetched):
                self._parts.append((_place(here), fetched))
            elif fetched.after.place.step != at.place.step:
                return fetched  # the whole step, on all ranks
            here = fetched.after
        self._counted = self._count(at.place.step)
        return self._counted[_place(at)]

    def _count(self, step: int) -> dict[Place, Fetched]:
        """Return the step's microbatches by position, with the label tokens of rank and step."""
        ranks: dict[int, int] = {}
        for _, part in self._parts:
            info = part.delivered.info
            ranks[info.rank] = ranks.get(info.rank, 0) + info.label_tokens
        total = self._add_up(step, ranks)
        return {place: _with_totals(part, ranks, total) for place, part in self._parts}


def beginning(at: ResumePosition) -> ResumePosition:
    """Return the position of a step's first microbatch; what was handed out of it comes again."""
    place = at.place
    if not place.microbatch and not at.served:
        return at
    return replace(at, place=structs.replace(place, microbatch=0), served=0)


def _with_totals(part: Fetched, ranks: Mapping[int, int], total: int) -> Fetched:
    info = part.delivered.info
    counted = replace(info, rank_label_tokens=ranks[info.rank], step_label_tokens=total)
    return Fetched(Delivered(part.delivered.batch, counted), part.after)


def _place(at: ResumePosition) -> Place:
    return at.place.step, at.place.microbatch, at.served
