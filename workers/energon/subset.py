"""A part of a split, by Energon's rules: a range of samples, and shares of what that leaves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Subset:
    """Samples first to last, then of these the part from `begin` to `end`, both in 0..1.

    last: None for the end.

    >>> Subset.of([100, "end"]).within(Subset.of(["0%", "50%"])).bounds(300)
    (100, 200)
    """

    first: int = 0
    last: int | None = None
    begin: float = 0.0
    end: float = 1.0

    @classmethod
    def of(cls, given: Sequence[Any]) -> "Subset":
        """Return the subset of ["25%", "75%"], [0, 100], [100, "end"], or of `facts`."""
        if not isinstance(given, list | tuple) or len(given) not in (0, 2, 4):
            raise _wrong(given)
        if len(given) == 4:
            found = cls(*given)
        elif not given:
            return cls()
        elif all(isinstance(each, str) and each.endswith("%") for each in given):
            try:
                found = cls(0, None, *(float(each[:-1]) / 100 for each in given))
            except ValueError:
                raise _wrong(given) from None
        else:
            found = cls(given[0], None if given[1] == "end" else given[1])
        if not found._is_right():
            raise _wrong(given)
        return found

    def _is_right(self) -> bool:
        whole = type(self.first) is int and (self.last is None or type(self.last) is int)
        shares = all(type(each) in (int, float) for each in (self.begin, self.end))
        return whole and shares and self.first >= 0 and 0 <= self.begin <= self.end <= 1

    @property
    def is_absolute(self) -> bool:
        """Return whether it counts samples: only a folder's own may."""
        return self.first > 0 or self.last is not None

    def within(self, outer: "Subset") -> "Subset":
        """Return the part of this one that `outer`, a share, leaves."""
        if outer.is_absolute:
            raise ValueError(f"the subset is {outer.facts()[:2]}: a range is only of a folder")
        whole = self.end - self.begin
        begin, end = self.begin + outer.begin * whole, self.begin + outer.end * whole
        return Subset(self.first, self.last, begin, end)

    def bounds(self, samples: int, name: str = "it") -> tuple[int, int]:
        """Return the first sample and the one after the last of `samples`."""
        last = samples if self.last is None else self.last
        if not self.first <= last <= samples:
            raise ValueError(f"the subset is {self.first} to {last}, and {name} has {samples}")
        left = last - self.first
        return self.first + int(left * self.begin), self.first + int(left * self.end)

    def facts(self) -> list[Any]:
        """Return what `of` takes, as JSON."""
        return [self.first, self.last, self.begin, self.end]


def _wrong(given: object) -> ValueError:
    return ValueError(
        f"a subset is {given!r:.80}: give ['25%', '75%'], two numbers of samples, or [100, 'end']"
    )
