"""Reads what will be asked for next, several requests at a time, within a bound of memory.

Who loads samples says beforehand which ranges are next, in order (`expect`). Requests for them are
made in threads as long as what is on its way or waits to be taken stays below the bound; a range
is taken once. What was expected and is not any more is forgotten. A range that was not expected is
read when it is asked for, its parts at the same time. Neighbouring ranges are one request, long
ones several.
"""

import itertools
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
StoreRange = tuple[Hashable, int, int]


def join_ranges(ranges: Iterable[Range], gap: int = GAP, most: int = MOST) -> list[Range]:
    """Return requests (start, end), sorted, that cover ranges, each of at most `most` bytes.

    >>> join_ranges([(0, 10), (12, 20), (100, 125)], gap=4, most=20)
    [(0, 20), (100, 120), (120, 125)]
    """
    requests = list[Range]()
    for start, end in sorted(ranges):
        first, last = requests[-1] if requests else (0, -gap - 1)
        if start - last <= gap and max(end, last) - first <= most:
            requests[-1] = first, max(end, last)
        else:
            requests += [(at, min(at + most, end)) for at in range(start, end, most)]
    return requests


def cut_range(span: Range, pieces: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the bytes of a range from pieces (offset, bytes) that cover it.

    >>> cut_range((3, 8), [(0, b"01234"), (5, b"56789")])
    b'34567'
    """
    at, end = span
    parts = list[bytes]()
    for offset, data in sorted(pieces, key=lambda piece: piece[0]):
        if offset <= at < offset + len(data) and at < end:
            parts.append(data[at - offset : end - offset])
            at += len(parts[-1])
    if at < end:
        raise ValueError(f"no piece holds byte {at} of {span}")
    return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(eq=False, slots=True)
class _Request:
    """A request, and the expected ranges that have not been taken from it."""

    object: Hashable
    start: int
    end: int
    expected: set[StoreRange] = field(default_factory=set)
    answer: "Future[bytes] | None" = None
    held: int = 0

    @property
    def range(self) -> StoreRange:
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
        self._requests: dict[StoreRange, list[_Request]] = {}
        self._later: deque[_Request] = deque()

    def expect(self, ranges: Iterable[StoreRange]) -> None:
        """Say what is asked for next, all of it and in this order."""
        places = {part: place for place, part in enumerate(dict.fromkeys(ranges))}
        with self._lock:
            # What is not asked for any more frees its bytes.
            for gone in [part for part in self._requests if part not in places]:
                for request in self._take(gone):
                    if not request.expected and request.answer is not None:
                        request.answer.cancel()
            requests = _plan_requests(part for part in places if part not in self._requests)
            for request in requests:
                for part in request.expected:
                    self._requests.setdefault(part, []).append(request)
            later = [request for request in (*self._later, *requests) if request.expected]
            later.sort(key=lambda request: min(places[part] for part in request.expected))
            self._later = deque(later)
            self._begin_some()

    def read(self, ranges: Sequence[StoreRange]) -> list[bytes]:
        """Return the bytes of ranges; raises what reading them raised."""
        with self._lock:
            requests = {part: self._take(part) for part in ranges}
            now = _plan_requests(part for part, taken in requests.items() if not taken)
            for request in now:
                for part in request.expected:
                    requests[part].append(request)
            # The first is read by this thread itself, if nothing else is waited for.
            for request in itertools.chain.from_iterable(requests.values()):
                if request.answer is None and (request not in now or len(now) > 1):
                    request.answer = self._submit(request)
            self._begin_some()
        alone = [self._fetch(*request.range) for request in now if request.answer is None]

        def piece(request: _Request) -> tuple[int, bytes]:
            return request.start, alone[0] if request.answer is None else request.answer.result()

        return [cut_range(part[1:], map(piece, requests[part])) for part in ranges]

    def _submit(self, request: _Request) -> "Future[bytes]":
        return self._pool.submit(self._fetch, *request.range)

    def _begin_some(self) -> None:
        """Make the next requests, as many as fit; one at least is on its way."""
        while self._later:
            request = self._later[0]
            if self._held and self._held + request.size > self._most:
                return
            self._later.popleft()
            if request.expected and request.answer is None:
                request.answer = self._submit(request)
                request.held = request.size
                self._held += request.held

    def _take(self, expected: StoreRange) -> list[_Request]:
        """Return the requests for an expected range, which is expected no more; or none."""
        requests = self._requests.pop(expected, [])
        for request in requests:
            request.expected.discard(expected)
            if not request.expected:
                self._held -= request.held
                request.held = 0
        return requests


def _plan_requests(expected: Iterable[StoreRange]) -> list[_Request]:
    """Return the requests that cover ranges, in the order of the first range of each object."""
    by_object: dict[Hashable, list[StoreRange]] = {}
    for part in expected:
        by_object.setdefault(part[0], []).append(part)
    requests = list[_Request]()
    for store_object, parts in by_object.items():
        for start, end in join_ranges(part[1:] for part in parts if part[2] > part[1]):
            covered = {part for part in parts if part[1] < end and part[2] > start}
            requests.append(_Request(store_object, start, end, covered))
    return requests
