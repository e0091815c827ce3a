"""The samples to be decoded, in the order of need."""

import heapq
from collections.abc import Callable

from .sample import ANY_SLOT, Sample, Slot

# (step, microbatch, rank, ordinal): sorts by need.
Entry = tuple[int, int, int, int]


class DecodeQueue:
    """Planned samples: those never decoded, by the slot that may do it, and those dropped since."""

    def __init__(self, is_wanted: Callable[[int], bool]) -> None:
        """`is_wanted` returns by its ordinal whether a sample must still be decoded."""
        self._is_wanted = is_wanted
        self._fresh: dict[Slot, list[Entry]] = {ANY_SLOT: []}
        self._dropped: list[Entry] = []

    def push(self, sample: Sample) -> None:
        """Queue a planned sample."""
        entry = (sample.step, sample.microbatch, sample.rank, sample.ordinal)
        heap = self._dropped if sample.settled else self._fresh.setdefault(sample.pin, [])
        heapq.heappush(heap, entry)

    def nearest(self, slot: Slot, front: tuple[int, int]) -> list[Entry] | None:
        """Return the heap to take the next sample from, None if all are empty.

        Dropped samples wait until the front needs them or nothing else is left: decoded earlier,
        they would be dropped again.
        """
        fresh = [self._fresh.get(slot) if slot != ANY_SLOT else None, self._fresh[ANY_SLOT]]
        heaps = [heap for heap in fresh if heap]
        for heap in (*heaps, self._dropped):
            # Entries are not removed when a sample arrives or is taken, but here.
            while heap and not self._is_wanted(heap[0][3]):
                heapq.heappop(heap)
        heaps = [heap for heap in heaps if heap]
        if self._dropped and (not heaps or self._dropped[0][:2] == front):
            return self._dropped
        return min(heaps, key=lambda heap: heap[0]) if heaps else None
