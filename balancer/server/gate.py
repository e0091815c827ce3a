"""Decides when the balancer lets new connections in: not while floods cost it too much.

Theory of operation. A banned peer can come back under another name at once, and until the balancer
has read enough of it to ban it again, libzmq holds what it sends. So each connection may cost some
memory and some time, and only their rate bounds the sum. A dropped message is a *debt*, which is
paid off at a fixed rate; while there is more than a little, or most of what waits to be read is to
be dropped, nobody new is let in, whoever it is. Connections that exist are not affected, and honest
newcomers wait for some seconds.

Pure: no socket, and the time is an argument.
"""

# Dropped messages that are forgotten each second: reading these takes a few percent of a core.
PAID_PER_S = 5_000.0
# Connections are let in up to this debt: an honest peer may send something in vain, too.
FREE_DEBT = 1_000.0
# No debt is larger, so that newcomers wait for 3 s at most after the last dropped message.
MOST_DEBT = FREE_DEBT + 3 * PAID_PER_S
# While messages wait that are to be dropped, the gate is looked at again after this many seconds.
LOOK_AGAIN_S = 0.001


class ConnectionGate:
    """Counts dropped messages; closed while there have been too many of late.

    >>> gate = ConnectionGate()
    >>> for _ in range(2000):
    ...     gate.record_dropped(now=7.0)
    >>> gate.closed_for_s(now=7.0), gate.closed_for_s(now=7.1), gate.closed_for_s(now=8.0)
    (0.2, 0.1, 0.0)
    """

    def __init__(self) -> None:
        self._debt = 0.0
        self._at = 0.0
        self._dropped = 0
        self._is_flooded = False

    def record_dropped(self, now: float) -> None:
        """Count a message that was read in vain."""
        self._debt = min(self._debt_at(now) + 1, MOST_DEBT)
        self._at = now
        self._dropped += 1

    def end_turn(self, read: int, is_more: bool) -> None:
        """Note how many messages were read in a turn, and whether more are likely to wait."""
        self._is_flooded = is_more and 2 * self._dropped > read
        self._dropped = 0

    def closed_for_s(self, now: float) -> float:
        """Return after how many seconds connections are let in again; 0.0: they are."""
        least = LOOK_AGAIN_S if self._is_flooded else 0.0
        return round(max(least, (self._debt_at(now) - FREE_DEBT) / PAID_PER_S), 6)

    def _debt_at(self, now: float) -> float:
        return max(0.0, self._debt - PAID_PER_S * max(0.0, now - self._at))
