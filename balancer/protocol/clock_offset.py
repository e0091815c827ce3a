"""How far one machine's wall clock is ahead of another's, for diagnosis and nothing else.

A peer notes when it sent a numbered question; the answer says what the other clock showed. That was
read somewhere between sending and receiving, so the offset is known within half of the round trip;
of the last answers the quickest tells best (the clock filter of NTP, RFC 5905, §10).
"""

from collections import deque
from dataclasses import dataclass

KEPT = 8
MICROSECONDS = 1_000_000
# The error of an offset that nobody has measured.
UNKNOWN = -1
# What a peer says of itself is cut down to this, so that sums and differences fit into 64 bits.
MOST = 1 << 60


@dataclass(frozen=True, slots=True)
class Offset:
    """One clock is `ahead_us` microseconds ahead of the other, give or take `error_us`."""

    ahead_us: int = 0
    error_us: int = UNKNOWN

    @property
    def is_known(self) -> bool:
        """Whether it was ever measured."""
        return self.error_us >= 0

    def least_us(self) -> int:
        """Return how far apart the clocks are at least, in microseconds.

        >>> Offset(-5000, 1000).least_us(), Offset(500, 1000).least_us()
        (4000, 0)
        """
        return max(0, abs(self.ahead_us) - self.error_us) if self.is_known else 0


NOT_MEASURED = Offset()


class ClockFilter:
    """The asking side: numbers its questions and keeps the best of its last answers.

    >>> clock = ClockFilter()
    >>> number = clock.ask(now=10.0, wall=1000.0)
    >>> clock.answered(number, their_us=990_050_000, now=10.1)
    >>> clock.best()
    Offset(ahead_us=10000000, error_us=50000)
    """

    def __init__(self) -> None:
        self._number = 0
        self._asked = (0, 0.0, 0.0)
        self._seen: deque[Offset] = deque(maxlen=KEPT)

    def ask(self, now: float, wall: float) -> int:
        """Return the number of a question sent now; `wall` is what this side's clock shows."""
        self._number += 1
        self._asked = self._number, now, wall
        return self._number

    def answered(self, number: int, their_us: int, now: float) -> None:
        """Take in what the other clock showed; an answer to an older question is ignored."""
        asked, sent, wall = self._asked
        if number != asked or not number:
            return
        self._asked = 0, 0.0, 0.0
        trip_us = max(0, round((now - sent) * MICROSECONDS))
        here_us = round(wall * MICROSECONDS) + trip_us // 2
        self._seen.append(Offset(here_us - their_us, (trip_us + 1) // 2))

    def best(self) -> Offset:
        """Return how far this side's clock is ahead."""
        return min(self._seen, key=lambda each: each.error_us, default=NOT_MEASURED)


def bounded(told: int) -> int:
    """Return a peer's figure, cut down to what can be reckoned with.

    >>> bounded(-5), bounded(1 << 62) == MOST
    (-5, True)
    """
    return max(-MOST, min(told, MOST))
