"""The samples to be decoded, in the order of need."""

import bisect
import heapq
from collections.abc import Callable

from .sample import Sample

# (step, microbatch, rank): sorts by need.
Place = tuple[int, int, int]


class _Waiting:
    """Ordinals by place, nearest first; those of a place in their order."""

    def __init__(self, is_wanted: Callable[[int], bool]) -> None:
        self._is_wanted = is_wanted
        self._places: list[Place] = []
        self._at: dict[Place, list[int]] = {}

    def push(self, place: Place, ordinal: int) -> None:
        """Add a sample."""
        waiting = self._at.get(place)
        if waiting is None:
            heapq.heappush(self._places, place)
            self._at[place] = [ordinal]
        else:
            bisect.insort(waiting, ordinal)

    def remove(self, ordinal: int) -> bool:
        """Take a sample out, wherever it is; return whether it was there."""
        for waiting in self._at.values():
            if ordinal in waiting:
                waiting.remove(ordinal)
                return True
        return False

    def first(self) -> tuple[Place, list[int]] | None:
        """Return the nearest place with its samples, the first of which is wanted; None: none.

        Samples are not removed when they arrive or are taken, but here.
        """
        while self._places:
            place = self._places[0]
            waiting = self._at[place]
            unwanted = 0
            while unwanted < len(waiting) and not self._is_wanted(waiting[unwanted]):
                unwanted += 1
            del waiting[:unwanted]
            if waiting:
                return place, waiting
            heapq.heappop(self._places)
            del self._at[place]
        return None


class DecodeQueue:
    """Planned samples: those never decoded, and those dropped since."""

    def __init__(self, is_wanted: Callable[[int], bool]) -> None:
        """`is_wanted` returns by its ordinal whether a sample must still be decoded."""
        self._fresh = _Waiting(is_wanted)
        self._dropped = _Waiting(is_wanted)

    def push(self, sample: Sample) -> None:
        """Queue a planned sample."""
        waiting = self._dropped if sample.settled else self._fresh
        waiting.push((sample.step, sample.microbatch, sample.rank), sample.ordinal)

    def remove(self, ordinal: int) -> bool:
        """Take a sample out, wherever it is; return whether it was queued."""
        return self._fresh.remove(ordinal) or self._dropped.remove(ordinal)

    def nearest(self, front: tuple[int, int]) -> tuple[Place, list[int]] | None:
        """Return the place of the next sample, and the ordinals there; None if there is none.

        The caller removes what it takes. Some after the first may not be wanted any more.

        Dropped samples wait until the front needs them or nothing else is left: decoded earlier,
        they would be dropped again.
        """
        fresh, dropped = self._fresh.first(), self._dropped.first()
        if dropped is not None and (fresh is None or dropped[0][:2] == front):
            return dropped
        return fresh
