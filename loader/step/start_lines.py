"""Tells a user of a loader's start what it has found out, and what would be faster."""

import logging
import sys


def tell(logger: logging.Logger, text: str) -> None:
    """Log a line at INFO; print it on standard error where the program has set up no logging."""
    if logger.hasHandlers():
        logger.info(text)
    else:
        sys.stderr.write(text + "\n")
