"""The laboratory: benches that back figures of docs/, and the papers' baselines; it is not shipped.

`make bench NAME=runtime ARGS="--rounds 5 --json"` runs one, in a checkout. What users run on their
own data is `counterpoise try`. The product imports nothing of this.
"""

from collections.abc import Sequence

from counterpoise.tools.console.reporting import spread


def rounded_spread(values: Sequence[float], digits: int) -> list[float]:
    """Return the median, the least and the most, in this order.

    >>> rounded_spread([1.23, 2.0], 1)
    [1.6, 1.2, 2.0]
    """
    return [round(each, digits) for each in spread(values).values()]
