"""The payloads of a microbatch, where all of them lie in memory that workers have lent."""

from collections.abc import Collection, Iterator, Sequence

from ...balancer.protocol.messages import Handles

# Payloads in a run, each so many bytes behind the one before: the run, where the first begins, the
# step from one to the next, and how many there are.
Stretch = tuple[memoryview, int, int, int]


class PlacedPayloads(Collection[memoryview]):
    """Payloads by their places in runs; a view of one is made when it is asked for.

    >>> places = Handles((), (0, 0, 1), (0, 2, 1), (1, 1, 1))
    >>> payloads = PlacedPayloads([memoryview(b"a-b"), memoryview(b"-c")], places)
    >>> [bytes(each) for each in payloads], len(payloads)
    ([b'a', b'b', b'c'], 3)
    >>> [each[1:] for each in payloads.stretches()]
    [(0, 2, 2), (1, 0, 1)]
    """

    __slots__ = ("handles", "runs")

    def __init__(self, runs: Sequence[memoryview], handles: Handles) -> None:
        """`runs` are the bytes of the runs of `handles`, in which every payload has a place."""
        self.runs = runs
        self.handles = handles

    def __len__(self) -> int:
        return len(self.handles.run_of)

    def __iter__(self) -> Iterator[memoryview]:
        runs = self.runs
        return (runs[n][start : start + size] for n, start, size in self.handles.places())

    def __contains__(self, payload: object) -> bool:
        return any(each == payload for each in self)

    def have_size(self, nbytes: int) -> bool:
        """Return whether each payload has this size in bytes."""
        return self.handles.lengths.count(nbytes) == len(self)

    def stretches(self) -> Iterator[Stretch]:
        """Return the payloads in their order, as many at once as lie evenly in one run."""
        run_of, starts, first = self.handles.run_of, self.handles.offsets, 0
        while first < len(run_of):
            end, number, start = first + 1, run_of[first], starts[first]
            step = starts[end] - start if end < len(run_of) else 0
            while end < len(run_of) and run_of[end] == number:
                if starts[end] != start + (end - first) * step:
                    break
                end += 1
            yield self.runs[number], start, step if end > first + 1 else 0, end - first
            first = end
