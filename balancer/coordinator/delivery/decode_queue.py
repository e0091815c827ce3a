"""The samples to be decoded, in the order of need."""

import bisect
import heapq
from collections.abc import Callable, Iterable

from .sample import Place


class _Waiting:
    """Ordinals by place, nearest first: by step and microbatch, and by rank from any one on."""

    def __init__(self, is_wanted: Callable[[int], bool]) -> None:
        self._is_wanted = is_wanted
        self._positions: list[tuple[int, int]] = []
        # Of each position the ranks with samples, sorted.
        self._ranks: dict[tuple[int, int], list[int]] = {}
        self._at: dict[Place, list[int]] = {}

    def push(self, place: Place, ordinals: Iterable[int]) -> None:
        """Add samples."""
        waiting = self._at.get(place)
        if waiting is not None:
            waiting.extend(ordinals)
            waiting.sort()
            return
        self._at[place] = sorted(ordinals)
        position = place[:2]
        ranks = self._ranks.get(position)
        if ranks is None:
            heapq.heappush(self._positions, position)
            self._ranks[position] = [place[2]]
        else:
            bisect.insort(ranks, place[2])

    def remove(self, ordinal: int) -> bool:
        """Take a sample out, wherever it is; return whether it was there."""
        for waiting in self._at.values():
            if ordinal in waiting:
                waiting.remove(ordinal)
                return True
        return False

    def first(self, rank: int) -> tuple[Place, list[int]] | None:
        """Return the nearest place with its samples, the first of which is wanted; None: none.

        Of the ranks of a microbatch the first from `rank` on. Samples are not removed when they
        arrive or are taken, but here.
        """
        while self._positions:
            position = self._positions[0]
            ranks = self._ranks[position]
            at = bisect.bisect_left(ranks, rank) % len(ranks)
            place = (*position, ranks[at])
            waiting = self._at[place]
            unwanted = 0
            while unwanted < len(waiting) and not self._is_wanted(waiting[unwanted]):
                unwanted += 1
            del waiting[:unwanted]
            if waiting:
                return place, waiting
            del self._at[place], ranks[at]
            if not ranks:
                heapq.heappop(self._positions)
                del self._ranks[position]
        return None


class DecodeQueue:
    """Planned samples: those never decoded, and those dropped since."""

    def __init__(self, is_wanted: Callable[[int], bool]) -> None:
        """`is_wanted` returns by its ordinal whether a sample must still be decoded."""
        self._fresh = _Waiting(is_wanted)
        self._dropped = _Waiting(is_wanted)

    def push(self, place: Place, ordinals: Iterable[int], is_dropped: bool) -> None:
        """Queue planned samples of a microbatch."""
        (self._dropped if is_dropped else self._fresh).push(place, ordinals)

    def remove(self, ordinal: int) -> bool:
        """Take a sample out, wherever it is; return whether it was queued."""
        return self._fresh.remove(ordinal) or self._dropped.remove(ordinal)

    def has_samples(self) -> bool:
        """Return whether samples are queued that must still be decoded."""
        return self._fresh.first(0) is not None or self._dropped.first(0) is not None

    def nearest(
        self, is_front: Callable[[tuple[int, int]], bool], rank: int
    ) -> tuple[Place, list[int]] | None:
        """Return the place of the next sample, and the ordinals there; None if there is none.

        Of the ranks of a microbatch the first from `rank` on. The caller removes what it takes.
        Some after the first may not be wanted any more.

        Dropped samples wait until the front needs them or nothing else is left: decoded earlier,
        they would be dropped again.
        """
        fresh, dropped = self._fresh.first(rank), self._dropped.first(rank)
        if dropped is not None and (fresh is None or is_front(dropped[0][:2])):
            return dropped
        return fresh
