"""Estimates how far one machine's wall clock is ahead of another's; used for diagnostics only.

A peer notes when it sent a numbered request; the response holds the other clock's reading. It was
taken between sending and receiving, so the offset is known within half of the round trip, and the
quickest of the last responses is the best estimate (the clock filter of NTP, RFC 5905, section 10).
"""

from collections import deque

import msgspec

KEPT = 8
MICROSECONDS = 1_000_000
# The error of an offset that was never measured.
UNKNOWN = -1
# Figures that peers report are limited to this, so that sums and differences fit into 64 bits.
LIMIT = 1 << 60


class Offset(msgspec.Struct, frozen=True):
    """One clock is `ahead_us` microseconds ahead of the other, give or take `error_us`."""

    ahead_us: int = 0
    error_us: int = UNKNOWN

    @property
    def is_known(self) -> bool:
        """Return True if the offset was ever measured."""
        return self.error_us >= 0

    def least_us(self) -> int:
        """Return the least distance between the clocks, in microseconds.

        >>> Offset(-5000, 1000).least_us(), Offset(500, 1000).least_us()
        (4000, 0)
        """
        return max(0, abs(self.ahead_us) - self.error_us) if self.is_known else 0


NOT_MEASURED = Offset()


class ClockFilter:
    """The requesting side: numbers its requests and keeps the best of the last responses.

    >>> clock = ClockFilter()
    >>> number = clock.request(now=10.0, wall=1000.0)
    >>> clock.record_response(number, their_us=990_050_000, now=10.1)
    >>> clock.best()
    Offset(ahead_us=10000000, error_us=50000)
    """

    def __init__(self) -> None:
        self._number = 0
        self._pending = (0, 0.0, 0.0)
        self._offsets: deque[Offset] = deque(maxlen=KEPT)

    def request(self, now: float, wall: float) -> int:
        """Return the number of a request sent now; `wall` is this side's wall clock."""
        self._number += 1
        self._pending = self._number, now, wall
        return self._number

    def record_response(self, number: int, their_us: int, now: float) -> None:
        """Record the other clock's reading; ignore the response to an older request."""
        pending, sent, wall = self._pending
        if number != pending or not number:
            return
        self._pending = 0, 0.0, 0.0
        trip_us = max(0, round((now - sent) * MICROSECONDS))
        here_us = round(wall * MICROSECONDS) + trip_us // 2
        self._offsets.append(Offset(here_us - their_us, (trip_us + 1) // 2))

    def best(self) -> Offset:
        """Return the best estimate of how far this side's clock is ahead."""
        return min(self._offsets, key=lambda each: each.error_us, default=NOT_MEASURED)


def bounded(reported: int) -> int:
    """Return a figure that a peer reported, limited to values that can be added safely.

    >>> bounded(-5), bounded(1 << 62) == LIMIT
    (-5, True)
    """
    return max(-LIMIT, min(reported, LIMIT))
