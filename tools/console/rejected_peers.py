"""Counts rejected peers and dropped messages, and logs them at most every ten seconds."""

import time
from collections import Counter
from collections.abc import Callable

LOG_EVERY_S = 10.0
# Reasons that are counted separately; all others count as one, so that peers cannot use up memory.
MAX_REASONS = 100
MAX_REASON_CHARACTERS = 300


class RejectedPeers:
    """Counts the reasons it is called with, and passes them to `log` at most every 10 s.

    >>> rejected = RejectedPeers(print, clock=iter([0.0, 1.0, 12.0]).__next__)
    >>> rejected("no key"); rejected("no key"); rejected("no key")
    refused: no key
    refused: no key (2 times)
    >>> rejected.total
    3
    """

    def __init__(
        self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total = 0
        self._log = log
        self._clock = clock
        self._unreported: Counter[str] = Counter()
        self._reported_at = float("-inf")

    def __call__(self, reason: str) -> None:
        """Count one rejection, and log it if it is time."""
        self.total += 1
        known = reason[:MAX_REASON_CHARACTERS]
        full = len(self._unreported) >= MAX_REASONS and known not in self._unreported
        self._unreported["for other reasons" if full else known] += 1
        now = self._clock()
        if now - self._reported_at >= LOG_EVERY_S:
            self._reported_at = now
            self.report()

    def report(self) -> None:
        """Log the reasons counted since the last report."""
        for reason, times in self._unreported.items():
            self._log(f"refused: {reason}" + (f" ({times} times)" if times > 1 else ""))
        self._unreported.clear()
