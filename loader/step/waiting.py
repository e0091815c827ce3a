"""Tells a user what a loader does: a line at its start, and one when it waits for long.

No clock here: the caller that waits says how long that has been.
"""

import logging
import sys

FIRST_LOG_S = 3.0
LOG_WAIT_S = 10.0
LOG_AGAIN_S = 30.0


def tell(logger: logging.Logger, text: str) -> None:
    """Log a line at INFO; print it on standard error where a program has not set up so much.

    Who silences our loggers, or all, means this, too.
    """
    level = max(logging.getLogger(name).level for name in ("counterpoise", logger.name))
    if max(level, logger.manager.disable + 1) > logging.INFO:
        return
    if logger.hasHandlers() and logger.isEnabledFor(logging.INFO):
        logger.info(text)
    else:
        sys.stderr.write(text + "\n")


class WaitLog:
    """One wait.

    >>> log = WaitLog(is_first=True)
    >>> [waited for waited in range(40) if log.is_due(waited)]
    [3, 33]
    """

    def __init__(self, is_first: bool) -> None:
        """`is_first` says that this process has had no batch of the run yet."""
        self.awaited = "its first batch" if is_first else "a batch"
        self._next_s = FIRST_LOG_S if is_first else LOG_WAIT_S

    def is_due(self, waited_s: float) -> bool:
        """Return whether to log now; not again for some time then."""
        if waited_s < self._next_s:
            return False
        self._next_s = waited_s + LOG_AGAIN_S
        return True
