"""The swap loop of problem/shuffle.py, which decides the order of an epoch."""

from . import cython

if not cython.compiled:
    from .arrays import Vector


def swap(items: Vector, partners: Vector) -> None:
    """Swap items[k] with items[partners[k]] for k = 0, 1, ..., in place."""
    with cython.nogil:
        for here in range(partners.shape[0]):
            there = partners[here]
            moved = items[here]
            items[here] = items[there]
            items[there] = moved
