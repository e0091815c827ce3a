"""Refused peers and dropped messages, counted always and mentioned once in a while."""

import time
from collections import Counter
from collections.abc import Callable

MENTION_S = 10.0
# Different reasons that are told apart; all further ones count as one, so that nobody can grow it.
MAX_REASONS = 100
MAX_REASON_CHARACTERS = 300


class RejectedPeers:
    """Call it with a reason each time; `say` hears of it at most every 10 s.

    >>> refusals = RejectedPeers(print, clock=iter([0.0, 1.0, 12.0]).__next__)
    >>> refusals("no key"); refusals("no key"); refusals("no key")
    refused: no key
    refused: no key (2 times)
    >>> refusals.total
    3
    """

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total = 0
        self._say = say
        self._clock = clock
        self._untold: Counter[str] = Counter()
        self._told = float("-inf")

    def __call__(self, reason: str) -> None:
        """Count one refusal."""
        self.total += 1
        known = reason[:MAX_REASON_CHARACTERS]
        full = len(self._untold) >= MAX_REASONS and known not in self._untold
        self._untold["for other reasons" if full else known] += 1
        now = self._clock()
        if now - self._told >= MENTION_S:
            self._told = now
            self.tell()

    def tell(self) -> None:
        """Say what has not been said."""
        for reason, times in self._untold.items():
            self._say(f"refused: {reason}" + (f" ({times} times)" if times > 1 else ""))
        self._untold.clear()
