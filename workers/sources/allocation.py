"""Where a transform gets memory for a sample's largest array: its own, or where it is to lie."""

from collections.abc import Callable

import numpy as np

# Returns writable memory of that many bytes: uint8 (n,), contents undefined.
Allocate = Callable[[int], np.ndarray]


def new_bytes(nbytes: int) -> np.ndarray:
    """Return memory that nobody else has.

    >>> new_bytes(3).shape
    (3,)
    """
    return np.empty(nbytes, np.uint8)
