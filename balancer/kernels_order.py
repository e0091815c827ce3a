"""The compiled swap loop of a long permutation."""

from .compiled import compiled
from .plan import Int64


@compiled
def swap(items: Int64, partners: Int64) -> None:
    """Swap items[k] with items[partners[k]] for k = 0, 1, ..., in place."""
    for here in range(partners.size):
        there = partners[here]
        kept = items[here]
        items[here] = items[there]
        items[there] = kept
