"""The compiled swap loop of problem/shuffle.py, which decides the order of an epoch."""

from .arrays import Int64
from .jit import compiled


@compiled
def swap(items: Int64, partners: Int64) -> None:
    """Swap items[k] with items[partners[k]] for k = 0, 1, ..., in place."""
    for here in range(partners.size):
        there = partners[here]
        kept = items[here]
        items[here] = items[there]
        items[there] = kept
