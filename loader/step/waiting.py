"""Tells a user what a loader does: a line at its start, and one when it waits for long.

No clock here: the caller that waits says how long that has been.
"""

import logging
import sys

FIRST_LOG_S = 3.0
LOG_WAIT_S = 10.0
LOG_AGAIN_S = 30.0


def tell(logger: logging.Logger, text: str, level: int = logging.INFO) -> None:
    """Log a line; print it on standard error where a program's logging does not show that level.

    Who silences our loggers, or all, means this, too.
    """
    silence = max(logging.getLogger(name).level for name in ("counterpoise", logger.name))
    if max(silence, logger.manager.disable + 1) > level:
        return
    if _is_shown(logger, level):
        logger.log(level, text)
    else:
        sys.stderr.write(text + "\n")


def _is_shown(logger: logging.Logger, level: int) -> bool:
    """Return whether a handler takes records of a logger: programs filter those of others."""
    record = logger.makeRecord(logger.name, level, "", 0, "", (), None)
    if not logger.isEnabledFor(level) or not logger.filter(record):
        return False
    above: logging.Logger | None = logger
    while above is not None:
        for handler in above.handlers:
            is_silent = level < handler.level or isinstance(handler, logging.NullHandler)
            if not is_silent and handler.filter(record):
                return True
        above = above.parent if above.propagate else None
    return False


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
