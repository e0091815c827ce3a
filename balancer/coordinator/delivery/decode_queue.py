"""The samples to be decoded, in the order of need."""

import heapq
from collections.abc import Callable

from .sample import Sample

# (step, microbatch, rank, ordinal): sorts by need.
Entry = tuple[int, int, int, int]


class DecodeQueue:
    """Planned samples: those never decoded, and those dropped since."""

    def __init__(self, is_wanted: Callable[[int], bool]) -> None:
        """`is_wanted` returns by its ordinal whether a sample must still be decoded."""
        self._is_wanted = is_wanted
        self._fresh: list[Entry] = []
        self._dropped: list[Entry] = []

    def push(self, sample: Sample) -> None:
        """Queue a planned sample."""
        entry = (sample.step, sample.microbatch, sample.rank, sample.ordinal)
        heap = self._dropped if sample.settled else self._fresh
        heapq.heappush(heap, entry)

    def remove(self, ordinal: int) -> bool:
        """Take a sample out, wherever it is; return whether it was queued."""
        for heap in (self._fresh, self._dropped):
            left = [entry for entry in heap if entry[3] != ordinal]
            if len(left) < len(heap):
                heap[:] = left
                heapq.heapify(heap)
                return True
        return False

    def nearest(self, front: tuple[int, int]) -> list[Entry] | None:
        """Return the heap to take the next sample from, None if all are empty.

        Dropped samples wait until the front needs them or nothing else is left: decoded earlier,
        they would be dropped again.
        """
        for heap in (self._fresh, self._dropped):
            # Entries are not removed when a sample arrives or is taken, but here.
            while heap and not self._is_wanted(heap[0][3]):
                heapq.heappop(heap)
        if self._dropped and (not self._fresh or self._dropped[0][:2] == front):
            return self._dropped
        return self._fresh or None
