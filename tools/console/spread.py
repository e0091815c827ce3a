"""The median of figures that were measured several times, with their range."""

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the least and the most, by name.

    >>> spread([3.0, 1.0, 2.0])
    {'median': 2.0, 'low': 1.0, 'high': 3.0}
    """
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def rounded_spread(values: Sequence[float], digits: int) -> list[float]:
    """Return the median, the least and the most, in this order.

    >>> rounded_spread([1.23, 2.0], 1)
    [1.6, 1.2, 2.0]
    """
    return [round(each, digits) for each in spread(values).values()]
