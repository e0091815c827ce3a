"""Reads what will be asked for next, several requests at a time, within a bound of memory.

Who loads samples says beforehand which ranges are next, in order (`expect`). Requests for them are
made in threads as long as what is on its way or waits to be taken stays below the bound; a range
is taken once. What was expected and is not any more is forgotten. A range that was not expected is
read when it is asked for, its parts at the same time. Neighbouring ranges are one request, long
ones several.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

# A request takes as long as some 100 KB of its answer: to read over a gap is sooner done.
GAP = 1 << 16
MOST = 4 << 20
Range = tuple[int, int]
# An object, and a range of it.
Wanted = tuple[Hashable, int, int]


def joined(ranges: Iterable[Range], gap: int = GAP, most: int = MOST) -> list[Range]:
    """Return requests (start, end), sorted, that cover ranges, each of at most `most` bytes.

    >>> joined([(0, 10), (12, 20), (100, 125)], gap=4, most=20)
    [(0, 20), (100, 120), (120, 125)]
    """
    found = list[Range]()
    for start, end in sorted(ranges):
        first, last = found[-1] if found else (0, -gap - 1)
        if start - last <= gap and max(end, last) - first <= most:
            found[-1] = first, max(end, last)
        else:
            found += [(at, min(at + most, end)) for at in range(start, end, most)]
    return found


def cut(wanted: Range, pieces: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the bytes of a range from pieces (offset, bytes) that cover it.

    >>> cut((3, 8), [(0, b"01234"), (5, b"56789")])
    b'34567'
    """
    at, end = wanted
    parts = list[bytes]()
    for offset, data in sorted(pieces, key=lambda piece: piece[0]):
        if offset <= at < offset + len(data) and at < end:
            parts.append(data[at - offset : end - offset])
            at += len(parts[-1])
    if at < end:
        raise ValueError(f"no piece holds byte {at} of {wanted}")
    return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(eq=False, slots=True)
class _Request:
    """A request, and the expected ranges that have not been taken from it."""

    object: Hashable
    start: int
    end: int
    wanted: set[Wanted] = field(default_factory=set)
    answer: "Future[bytes] | None" = None
    held: int = 0

    @property
    def range(self) -> Wanted:
        return self.object, self.start, self.end

    @property
    def size(self) -> int:
        return self.end - self.start


class ReadAhead:
    """Ranges of objects, which `fetch(object, start, end)` reads.

    >>> ahead = ReadAhead(lambda text, start, end: text[start:end], requests=2, most=100)
    >>> ahead.expect([(b"abcdef", 0, 2), (b"abcdef", 2, 4)])
    >>> ahead.read([(b"abcdef", 2, 4), (b"abcdef", 5, 6)])
    [b'cd', b'f']
    """

    def __init__(
        self, fetch: Callable[[Hashable, int, int], bytes], requests: int, most: int
    ) -> None:
        self._fetch = fetch
        self._pool = ThreadPoolExecutor(requests, "reads of stores")
        self._most = most
        self._lock = threading.Lock()
        self._held = 0  # bytes of requests that were made and not forgotten
        self._requests: dict[Wanted, list[_Request]] = {}
        self._later: deque[_Request] = deque()

    def expect(self, ranges: Iterable[Wanted]) -> None:
        """Say what is asked for next, all of it and in this order."""
        wanted = {each: place for place, each in enumerate(dict.fromkeys(ranges))}
        with self._lock:
            for gone in [each for each in self._requests if each not in wanted]:
                for request in self._take(gone):
                    if not request.wanted and request.answer is not None:
                        request.answer.cancel()
            requests = _plan_requests(each for each in wanted if each not in self._requests)
            for request in requests:
                for each in request.wanted:
                    self._requests.setdefault(each, []).append(request)
            later = [request for request in (*self._later, *requests) if request.wanted]
            self._later = deque(sorted(later, key=lambda one: min(wanted[w] for w in one.wanted)))
            self._begin_some()

    def read(self, ranges: Sequence[Wanted]) -> list[bytes]:
        """Return the bytes of ranges; raises what reading them raised."""
        with self._lock:
            parts = {each: self._take(each) for each in ranges}
            now = _plan_requests(each for each in parts if not parts[each])
            for request in now:
                for each in request.wanted:
                    parts[each].append(request)
            # The first is read by this thread itself, if nothing else is waited for.
            for request in (each for several in parts.values() for each in several):
                if request.answer is None and (request not in now or len(now) > 1):
                    request.answer = self._submit(request)
            self._begin_some()
        alone = [self._fetch(*each.range) for each in now if each.answer is None]
        return [
            cut(each[1:], [(one.start, self._answer(one, alone)) for one in parts[each]])
            for each in ranges
        ]

    def _answer(self, request: _Request, alone: list[bytes]) -> bytes:
        return alone[0] if request.answer is None else request.answer.result()

    def _submit(self, request: _Request) -> "Future[bytes]":
        return self._pool.submit(self._fetch, *request.range)

    def _begin_some(self) -> None:
        """Make the next requests, as many as fit; one at least is on its way."""
        while self._later:
            request = self._later[0]
            if self._held and self._held + request.size > self._most:
                return
            self._later.popleft()
            if request.wanted and request.answer is None:
                request.answer = self._submit(request)
                request.held = request.size
                self._held += request.held

    def _take(self, wanted: Wanted) -> list[_Request]:
        """Return the requests for an expected range, which is expected no more; or none."""
        requests = self._requests.pop(wanted, [])
        for request in requests:
            request.wanted.discard(wanted)
            if not request.wanted:
                self._held -= request.held
                request.held = 0
        return requests


def _plan_requests(wanted: Iterable[Wanted]) -> list[_Request]:
    """Return the requests that cover ranges, in the order of the first range of each object."""
    objects: dict[Hashable, list[Wanted]] = {}
    for each in wanted:
        objects.setdefault(each[0], []).append(each)
    found = list[_Request]()
    for thing, ranges in objects.items():
        requests = [
            _Request(thing, *span) for span in joined((s, e) for _, s, e in ranges if e > s)
        ]
        for request in requests:
            request.wanted = {
                each for each in ranges if each[1] < request.end and each[2] > request.start
            }
        found += requests
    return found
