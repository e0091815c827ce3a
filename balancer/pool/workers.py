"""A worker as its pool knows it: what it was given, how fast it is, what it keeps."""

from collections import OrderedDict
from dataclasses import dataclass, field

from .parts import Part

# The parts that a worker has take it about so long; their number.
AHEAD_S, LEAST_PARTS, MOST_PARTS = 0.1, 2, 16
# How much of the mean a new time is.
NEW = 0.25


@dataclass(slots=True)
class Pace:
    """How long a sample takes, by a moving mean; 0 while nothing is known."""

    each_s: float = 0.0

    def add(self, seconds: float, samples: int) -> None:
        """Count a part that took so long."""
        each_s = seconds / max(1, samples)
        self.each_s = each_s if not self.each_s else (1 - NEW) * self.each_s + NEW * each_s


@dataclass(slots=True, eq=False)
class PoolWorker:
    """One worker. heard_at: when it was; busy_with, busy_since: the sample that its beats name.

    parts: what it was given and has not answered, in order, and when that was. pieces: what it
    keeps for tickets, by serial; free: serials that it may forget. unlike:
    beats in a row that were unlike what is known here, of parts and of what is kept.
    """

    name: bytes
    heard_at: float
    loading: Pace = field(default_factory=Pace)
    measuring: Pace = field(default_factory=Pace)
    parts: OrderedDict[int, Part] = field(default_factory=OrderedDict)
    pieces: dict[int, Part] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    busy_with: tuple[int, int] = (0, -1)
    busy_since: float = 0.0
    unlike: list[int] = field(default_factory=lambda: [0, 0])
    is_leaving: bool = False

    def has_room(self, ahead_s: float) -> bool:
        """Return whether it may have one more part, if those that it has take `ahead_s`."""
        if self.is_leaving or any(part.alone for part in self.parts.values()):
            return False
        count = len(self.parts)
        return count < LEAST_PARTS or (count < MOST_PARTS and ahead_s < AHEAD_S)
