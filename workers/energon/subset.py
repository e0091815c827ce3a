"""A part of a split, by Energon's rules: a range of samples, and shares of what that leaves."""

from dataclasses import astuple, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Subset:
    """Samples first to last (None: the end), and of these the part begin to end, both in 0..1.

    >>> Subset.of([100, "end"]).within(Subset.of(["0%", "50%"])).bounds(300)
    (100, 200)
    """

    first: int = 0
    last: int | None = None
    begin: float = 0.0
    end: float = 1.0

    @classmethod
    def of(cls, given: Any) -> "Subset":
        """Return the subset of ["25%", "75%"], [0, 100], [100, "end"], [], or of its fields."""
        try:
            match given:
                case [str(begin), str(end)] if begin[-1:] == end[-1:] == "%":
                    found = cls(0, None, float(begin[:-1]) / 100, float(end[:-1]) / 100)
                case [first, last]:
                    found = cls(first, None if last == "end" else last)
                case [] | [_, _, _, _]:
                    found = cls(*given)
                case _:
                    raise TypeError
            is_right = 0 <= found.begin <= found.end <= 1 and found.first >= 0
            if not is_right or not {type(found.first), type(found.last)} <= {int, type(None)}:
                raise TypeError
        except (TypeError, ValueError):
            raise ValueError(
                f"a subset is {given!r:.80}: give ['25%', '75%'], two numbers of samples, or "
                "[100, 'end']"
            ) from None
        return found

    @property
    def is_absolute(self) -> bool:
        """Return whether it counts samples: only a folder's own may."""
        return self.first > 0 or self.last is not None

    def within(self, outer: "Subset") -> "Subset":
        """Return the part of this one that `outer`, a share, leaves."""
        if outer.is_absolute:
            raise ValueError(f"the subset is {astuple(outer)[:2]}: a range is only of a folder")
        whole = self.end - self.begin
        begin, end = self.begin + outer.begin * whole, self.begin + outer.end * whole
        return Subset(self.first, self.last, begin, end)

    def bounds(self, samples: int, name: str = "it") -> tuple[int, int]:
        """Return the first sample of `samples` and the one after the last."""
        last = samples if self.last is None else self.last
        if not self.first <= last <= samples:
            raise ValueError(f"the subset is {self.first} to {last}, and {name} has {samples}")
        left = last - self.first
        return self.first + int(left * self.begin), self.first + int(left * self.end)
