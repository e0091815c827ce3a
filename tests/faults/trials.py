"""Counts what runs with faults lost, duplicated or changed, against a run without faults."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .cluster import Line

Expected = list[list[Line]]


@dataclass(slots=True)
class Trials:
    """The counts of all runs together."""

    runs: int = 0
    kills: int = 0
    stops: int = 0
    cuts: int = 0
    lost: int = 0
    duplicated: int = 0
    digest_mismatches: int = 0
    unfinished: int = 0
    leftovers: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def report(self) -> dict[str, object]:
        """Return the figures."""
        names = [name for name in self.__slots__ if name != "seconds"]
        return {name: getattr(self, name) for name in names} | {"seconds": round(self.seconds, 1)}

    def add(self, other: "Trials") -> None:
        """Add another's counts; its time passed within ours."""
        for name in self.__slots__:
            if name != "seconds":
                setattr(self, name, getattr(self, name) + getattr(other, name))

    def left(self, what: list[str], said: Sequence[str] = ()) -> None:
        """Count what was left behind, and keep further notes."""
        self.leftovers += len(what)
        self.notes += [*what, *said]

    @property
    def wrong(self) -> int:
        """Return the number of errors of all kinds."""
        found = self.lost + self.duplicated + self.digest_mismatches
        return found + self.unfinished + self.leftovers


def compare(
    expected: Expected, found: Expected, redelivered: list[tuple[int, Line]], trials: Trials
) -> None:
    """Count missing, duplicated and different samples; redelivered steps must be the same."""
    for rank, due in enumerate(expected):
        came = found[rank]
        trials.lost += (_keys(due) - _keys(came)).total()
        trials.duplicated += (_keys(came) - _keys(due)).total()
        trials.digest_mismatches += sum(a != b for a, b in itertools.zip_longest(due, came))
    for rank, line in redelivered:
        trials.digest_mismatches += line not in expected[rank]


def _keys(lines: list[Line]) -> Counter[str]:
    return Counter(key for _, batches in lines for _, keys, _ in batches for key in keys)  # type: ignore[attr-defined]
