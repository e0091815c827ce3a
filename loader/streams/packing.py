"""Packs the samples of a stream within budgets, one pack at a time: a window, and what it gives.

A window holds the samples that have been read and wait, in order of arrival. Every pack begins with
the oldest of them, so none waits for more packs than the window has samples. It goes on in order of
arrival while there is room for two average samples more; the rest is filled by the largest that
still fits (best fit). So packs are full, and what was read longest ago is nearly the oldest that
waits, which bounds what a resumed run reads again.

A window is not filled at once: before a pack at most two packs' worth of samples is read, so that
no loop waits for a whole window, at the start or later. In a full window it is what the pack before
has taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import ge, le, sub
from typing import Any

# Samples that a window holds at most.
WINDOW = 256
# Samples that are read for a pack, in packs; room that is filled by best fit, in average samples.
AHEAD, ROOM = 2, 2
_SCALE = 1 << 20

# What a sample costs of each resource that has a budget.
Costs = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """The most of each resource in a pack; padded: whether it costs count x largest of that."""

    budgets: tuple[int, ...]
    padded: tuple[bool, ...]

    def allow(self, costs: Costs) -> bool:
        """Return whether a sample fits into a pack by itself."""
        return all(map(le, costs, self.budgets))


def choose(waiting: Sequence[Costs], limits: Limits) -> list[int]:
    """Return the places of the samples that make the next pack, ascending; the oldest is in it.

    A sample over budget makes a pack of its own when it is the oldest. Where a resource is padded,
    those follow that cost most like the oldest.

    >>> choose([(6,), (5,), (2,), (3,), (4,)], Limits((10,), (False,)))
    [0, 4]
    >>> choose([(6,), (2,), (5,), (6,)], Limits((12,), (True,)))
    [0, 3]
    """
    taken, pack = [0], _Taken(waiting[0], limits)
    if not limits.allow(waiting[0]):
        return taken
    if any(limits.padded):
        candidates = [*range(1, len(waiting))]
        candidates.sort(key=lambda place: _unlike(waiting, place, limits))
    else:
        means = [ROOM * sum(column) / len(waiting) for column in zip(*waiting, strict=True)]
        place, candidates = 1, []
        while place < len(waiting) and all(map(ge, pack.room, means)):
            (taken if pack.takes(waiting[place]) else candidates).append(place)
            place += 1
        room, candidates = pack.room, [*candidates, *range(place, len(waiting))]
        candidates = [place for place in candidates if all(map(le, waiting[place], room))]
        candidates.sort(key=lambda place: -_size(waiting[place], limits))
    taken += [place for place in candidates if pack.takes(waiting[place])]
    return sorted(taken)


class _Taken:
    """A pack that is being filled; room: the most that another sample may cost, of each resource.

    Of a padded resource another sample must leave (count + 1) x largest within the budget.
    """

    def __init__(self, first: Costs, limits: Limits) -> None:
        self._limits, self._largest, self._count = limits, first, 0
        self.room: Costs = limits.budgets
        self._take(first)

    def takes(self, costs: Costs) -> bool:
        """Take a sample if it fits; return whether it does."""
        if not all(map(le, costs, self.room)):
            return False
        self._take(costs)
        return True

    def _take(self, costs: Costs) -> None:
        self._count += 1
        self.room = tuple(map(sub, self.room, costs))
        if any(self._limits.padded):
            self._largest = tuple(map(max, self._largest, costs))
            shares = [most // (self._count + 1) for most in self._limits.budgets]
            self.room = tuple(
                room if not is_padded else share if largest <= share else -1
                for room, is_padded, share, largest in zip(
                    self.room, self._limits.padded, shares, self._largest, strict=True
                )
            )


def _size(costs: Costs, limits: Limits) -> int:
    """Return how much of the budgets a sample takes, in whole numbers, as machines differ else."""
    return sum(cost * _SCALE // most for cost, most in zip(costs, limits.budgets, strict=True))


def _unlike(waiting: Sequence[Costs], place: int, limits: Limits) -> int:
    """Return how far a sample's padded costs are from the oldest's."""
    return sum(
        abs(cost - first) * _SCALE // most
        for cost, first, most, is_padded in zip(
            waiting[place], waiting[0], limits.budgets, limits.padded, strict=True
        )
        if is_padded
    )


class PackWindow:
    """The samples that wait to be packed, each with its number in the stream and what it costs.

    most_bytes: of all of them; one is always held.

    >>> window = PackWindow(Limits((10,), (False,)))
    >>> for number, tokens in enumerate((6, 5, 2, 3, 4)):
    ...     window.add(number, (tokens,), f"sample {number}")
    >>> window.take(), window.numbers
    (['sample 0', 'sample 4'], [1, 2, 3])
    """

    def __init__(self, limits: Limits, size: int = WINDOW, most_bytes: int = 1 << 62) -> None:
        self.limits = limits
        self.numbers: list[int] = []
        self._costs: list[Costs] = []
        self._held: list[tuple[Any, int]] = []
        self._size, self._most_bytes, self._bytes = size, most_bytes, 0
        self._read = [0] * len(limits.budgets)

    def wants(self) -> bool:
        """Return whether to read another sample before the next pack is taken."""
        if not self.numbers:
            return True
        enough = any(
            read >= AHEAD * most for read, most in zip(self._read, self.limits.budgets, strict=True)
        )
        return len(self.numbers) < self._size and self._bytes < self._most_bytes and not enough

    def add(self, number: int, costs: Costs, sample: Any, nbytes: int = 0) -> None:
        """Hold a sample."""
        self.numbers.append(number)
        self._costs.append(costs)
        self._held.append((sample, nbytes))
        self._bytes += nbytes
        self._read = [read + cost for read, cost in zip(self._read, costs, strict=True)]

    def take(self) -> list[Any]:
        """Return the samples of the next pack, in order of arrival, and hold them no more."""
        places = choose(self._costs, self.limits)
        pack = [self._held[place] for place in places]
        for place in reversed(places):
            del self.numbers[place], self._costs[place], self._held[place]
        self._bytes -= sum(nbytes for _, nbytes in pack)
        self.begin_reading()
        return [sample for sample, _ in pack]

    def begin_reading(self) -> None:
        """Note that what is held was read before the pack that comes next."""
        self._read = [0] * len(self.limits.budgets)
