"""Divides a worker's memory: payloads lie one after the other in segments, which are used again.

Payloads are needed in about the order in which they were decoded, so there is nothing to search: a
payload goes behind the last one, and a segment all of whose payloads were given back is written
from its start again. The segment that became free last comes first: it may still be in a cache.
"""

from dataclasses import dataclass, field

ALIGNMENT = 64
# The usual sizes of segments, in bytes.
SMALLEST, LARGEST = 1 << 20, 32 << 20


def aligned(end: int) -> int:
    """Return the first multiple of ALIGNMENT from an offset on.

    >>> aligned(64), aligned(65)
    (64, 128)
    """
    return -(-end // ALIGNMENT) * ALIGNMENT


@dataclass(slots=True)
class _Segment:
    """size: its bytes; end: where the next payload goes; used: payloads in it; spoiled: no more."""

    size: int
    end: int = 0
    used: int = 0
    spoiled: bool = False


@dataclass(slots=True)
class Segments:
    """The segments of one worker, by number.

    The first is of the smallest size, and each as large as all before it together, up to the
    largest; for a larger payload it is a multiple of the smallest. most_bytes: of all together.
    retired: the numbers of segments that were given up since the caller last emptied
    the list.
    """

    most_bytes: int
    smallest: int = SMALLEST
    largest: int = LARGEST
    retired: list[int] = field(default_factory=list)
    _all: dict[int, _Segment] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)
    _current: int = -1
    _next: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._all.values())

    def size(self, number: int) -> int:
        """Return the bytes of a segment."""
        return self._all[number].size

    def is_full(self, nbytes: int) -> bool:
        """Return whether a payload needs another segment than the one that is written to."""
        segment = self._all.get(self._current)
        return segment is None or segment.spoiled or segment.end + nbytes > segment.size

    def take(self, nbytes: int, most: int = 0) -> tuple[int, int, int] | None:
        """Return segment, offset and end of the room for a payload; None where there is none.

        A number that was never returned before is a new segment. The room is as large as `most`, if
        that is more and the segment has it.
        """
        if self.is_full(nbytes):
            number = self._other(nbytes)
            if number is None:
                return None
            self._leave_current()
            self._current = number
        segment = self._all[self._current]
        start = segment.end
        end = min(start + max(nbytes, most), segment.size)
        segment.end = aligned(end)
        segment.used += 1
        return self._current, start, end

    def shorten(self, number: int, start: int, taken: int, needed: int) -> None:
        """Take back what a payload does not need of its room, if it is the last in its segment."""
        segment = self._all[number]
        if segment.end == aligned(start + taken):
            segment.end = aligned(start + needed)

    def give(self, number: int, spoiled: bool = False) -> None:
        """Take a payload's room back; `spoiled`: its segment must not be written again."""
        segment = self._all[number]
        segment.used -= 1
        segment.spoiled |= spoiled
        if segment.used:
            return
        segment.end = 0
        if segment.spoiled:
            self._retire(number)
        elif number != self._current:
            self._free.append(number)

    def forget(self, number: int) -> None:
        """Forget a new segment that there is no memory for."""
        del self._all[number]
        self._current = -1

    def trim(self) -> None:
        """Retire the segments that nothing is in."""
        for number in [n for n, segment in self._all.items() if not segment.used]:
            self._retire(number)

    def _other(self, nbytes: int) -> int | None:
        """Return a free or a new segment with room for a payload, None if there may be none."""
        for number in reversed(self._free):
            if self._all[number].size >= nbytes:
                self._free.remove(number)
                return number
        usual = min(max(self.total_bytes, self.smallest), self.largest)
        size = -(-max(nbytes, usual) // self.smallest) * self.smallest
        while self._free and self.total_bytes + size > self.most_bytes:
            self._retire(self._free[0])
        if self.total_bytes + size > self.most_bytes:
            return None
        number, self._next = self._next, self._next + 1
        self._all[number] = _Segment(size)
        return number

    def _leave_current(self) -> None:
        """Make the current segment one of the others."""
        segment = self._all.get(self._current)
        if segment is not None and not segment.used:
            self._free.append(self._current)

    def _retire(self, number: int) -> None:
        del self._all[number]
        if number in self._free:
            self._free.remove(number)
        self.retired.append(number)
